// Package loop attaches files to loop devices and takes them off again, by system calls alone.
//
// # Words
//
// A backing file is a regular file whose bytes a loop device shows as a block device. It is identified by its device
// number and inode, never by its path: a path can be renamed, can lead through a link, and reads differently in another
// mount namespace. A device is attached while it has a backing file, and free otherwise. A device is claimed while it is
// mounted, in whatever mount namespace, or somebody has it open with O_EXCL. It lingers when it was told to detach and
// somebody still has it open: the kernel then detaches it with the last close.
//
// # A life
//
//	loops := loop.New(loop.Options{})
//	device, err := loops.Attach(ctx, "/srv/images/a.img", loop.AttachOptions{})
//	... mount device.Path, use it, unmount it ...
//	... make the file larger ...
//	device, err = loops.Resize(ctx, "/srv/images/a.img")
//	err = loops.Detach(ctx, device)
//
// # One file, one device
//
// The kernel gladly attaches one file to two devices and mounts both for writing, which destroys the filesystem.
//
// Against users of this package, in this process and in others, it never happens, not for an instant: they look and
// attach under a lock (flock(2)) on the file. (The one exception is a filesystem that hangs for some and answers others;
// see What hangs.)
//
// Against everybody else, such as losetup(8), which takes no lock, [Manager.Attach] promises this: at one moment of the
// call no other device had the file. It is the moment in which the kernel began with the attachment of the device that is
// returned, or in which that was found. What somebody attached before, or had begun to, is found, and then Attach returns
// that device or an error that matches [ErrInUse], never a second device; its own is taken off again. It claims its own as
// soon as that has the file, and for as long as it looks at the others, so that nobody can mount it. When it takes it off,
// it keeps the claim until others have closed the device, up to about a second. Who attaches the file once more after that
// moment is not kept from it, since the kernel has no means for that; [Manager.Find] tells.
//
// Attach disturbs nobody else. A device that is free may be another's an instant later, and the kernel refuses to mount what
// somebody else has claimed. So Attach claims no device before that has its file, and the kernel decides who gets a device
// that two want. (Kernels before 5.8 take two steps, and need the claim before the first.)
//
// # What that costs
//
// To know that no other device has the file does not take a look at all of them. The kernel numbers all attachments and
// detachments of disks (diskseq, Linux 5.15). When the number of our own attachment follows the last number that the
// Manager knows, nobody else has changed a disk since, and what it remembers is all that there is. So Attach and Detach
// cost the same with any number of devices, while one Manager makes the changes. The first call of a Manager looks at all
// devices, and so does Attach after somebody else has changed any disk: that reads one small file in sysfs for each device,
// free ones too, and asks only the devices that did change. Find, Devices and Resize always look in that way. On kernels
// before 5.15 Attach always looks at all.
//
// # Detached means detached
//
// LOOP_CLR_FD succeeds on a device that is still open elsewhere, and then only promises to detach it later.
// [Manager.Detach] first claims the device, which fails while it is mounted in any mount namespace, and afterwards asks
// the kernel for its backing file: nil is returned when there is none, or another one. While the device is open here it
// keeps the file that it has, so that no other file than the one that is meant is ever taken off.
//
// # What hangs
//
// The kernel asks the filesystem of the backing file to attach a file, to detach it and even to say what a device has. On a
// dead filesystem that lasts for ever. Every method returns all the same when its context ends, with an *mount.AbandonedError
// whose Done tells when the call has ended. A device that does not say what it has is waited for for a quarter of a second,
// once, and then counts as having another file than the one in question, which did answer. So volumes on other filesystems
// go on. Attach refuses when the kernel shows both under one path, and when the file in question has several names (hard
// links). What is left is a filesystem that is mounted twice, and that is silent about the device's file and then answers
// about the same file by its other path, to a Manager that has not seen the device before: there a file can get a second
// device.
//
// # What is abandoned
//
// Nothing lingers here. Every descriptor is closed before a method returns, is close-on-exec, and locks end with it. A
// process that is killed leaves a device attached or free, never half of it, and no lock. The next call about the file
// finds the device. When it was killed in the moment in which its device and one of somebody else's had the same file,
// the next Attach with the same label takes off the one with that label.
//
// # When not to use this package
//
// For what is not a file of this machine. To mount, see package mount; what lies in an image is data from outside, so mount
// it with "nosuid" and "nodev". The functions need CAP_SYS_ADMIN, and a kernel of 5.8 or newer for attaching in one step;
// an older one does it in two. Everywhere but on Linux every method returns an error that matches mount.ErrUnsupported.
package loop
