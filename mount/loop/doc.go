// Package loop attaches files to loop devices and detaches them, by system calls alone.
//
// # Words
//
// A backing file is a regular file whose bytes a loop device shows as a block device. It is identified by its device number
// and inode, never by its path: a path can be renamed, can lead through a link, and reads differently in another mount
// namespace. A device is attached while it has a backing file, and free otherwise. A device is in exclusive use while it is
// mounted in any mount namespace, or while a process has it open with O_EXCL. It lingers after a detach while a process still has
// it open: the kernel then detaches it at the last close.
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
// The kernel lets one file be attached to two devices, and mounts both for writing, which destroys the filesystem.
//
// Users of this package never attach a file twice, in this process or in others, not even for a moment: they look and attach
// under a lock (flock(2)) on the file. The one exception is a filesystem that hangs for some and answers others; see What
// hangs.
//
// Other programs, such as losetup(8), take no lock. Against them [Manager.Attach] promises this: at one moment of the call
// no other device had the file. That is the moment at which the kernel began to attach the returned device, or at which
// Attach found it. If another program attached the file before, or had begun to, Attach finds that. It then returns that
// device or an error that matches [ErrInUse], never a second device, and detaches its own. It opens its own device with O_EXCL as
// soon as that has the file, and while it looks at the others, so no program can mount it. When it detaches its own, it keeps it
// open until other processes have closed the device, up to about a second. A program that attaches the file once more after
// that moment is not prevented, because the kernel has no means for that; [Manager.Find] reports it.
//
// Attach disturbs no other program. Another program may take a free device a moment later, and the kernel refuses to mount a
// device that is in exclusive use elsewhere. So Attach opens a device with O_EXCL only when that has its file. If two programs
// want one device, the kernel decides. (Kernels before 5.8 take two steps, and need O_EXCL before the first.)
//
// # Cost
//
// Attach need not look at all devices to know that no other device has the file. The kernel numbers all attachments and
// detachments of disks (diskseq, Linux 5.15). If the number of the new attachment follows the last number that the Manager
// knows, no other program has changed a disk since, and the Manager's memory is complete. So Attach and Detach cost the same
// with any number of devices, while one Manager makes all changes. The first call of a Manager looks at all devices. So does
// Attach after another program has changed any disk: it reads one small file in sysfs for each device, free ones too, and
// queries only the devices that changed. Find, Devices and Resize always look in that way. On kernels before 5.15 Attach
// always looks at all devices.
//
// # Detached means detached
//
// LOOP_CLR_FD succeeds on a device that is still open elsewhere, and then only schedules the detach. [Manager.Detach] first opens
// the device with O_EXCL, which fails while it is mounted in any mount namespace. Afterwards it reads the backing file from the
// kernel, and returns nil if there is none, or another one. While the device is open here it keeps its file, so Detach never
// detaches another file.
//
// # What hangs
//
// To attach a file, to detach it and even to report it, the kernel calls the filesystem of the backing file. On a dead
// filesystem such a call lasts for ever. Every method still returns when its context ends, with an *mount.AbandonedError whose
// Done closes when the call has ended. If a device does not report its file, the Manager waits for a quarter of a second,
// once. Then the device counts as having another file than the one in question, whose filesystem did answer. So volumes on
// other filesystems continue. Attach refuses if the kernel shows both files under one path, or if the file in question has
// several names (hard links). One case is left: a filesystem that is mounted twice does not answer for the device's file,
// and then answers for the same file by its other path, to a Manager that has not seen the device before. There a file can
// get a second device.
//
// # What a call leaves
//
// A call leaves nothing. It closes every descriptor before it returns; descriptors are close-on-exec, and locks end with
// them. A process that is killed leaves a device attached or free, never half attached, and no lock. The next call for the
// file finds the device. If it was killed while its device and one of another program had the same file, the next Attach
// with the same label detaches the one with that label.
//
// # When not to use this package
//
// Use it only for files of this machine. To mount, see package mount. The content of an image is data from outside, so mount
// it with "nosuid" and "nodev". The functions need CAP_SYS_ADMIN, and Linux 5.8 or newer to attach in one step; an older
// kernel takes two. On systems other than Linux every method returns an error that matches mount.ErrUnsupported.
package loop
