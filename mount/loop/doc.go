// Package loop attaches files to loop devices and takes them off again, by system calls alone.
//
// # Words
//
// A backing file is a regular file whose bytes a loop device shows as a block device. It is identified by its device
// number and inode, never by its path: a path can be renamed, can lead through a link, and reads differently in another
// mount namespace. A device is attached while it has a backing file, and free otherwise.
//
// # A life
//
//	device, err := loop.Attach(ctx, "/srv/images/a.img", loop.Options{})
//	... mount device.Path, use it, unmount it ...
//	err = loop.Detach(ctx, device)
//
// # Guarantees
//
// One file, one device. The kernel gladly attaches one file to two devices and mounts both for writing, which destroys
// the filesystem. [Attach] therefore looks at every loop device of the machine first, whoever attached it, and returns
// the one that has the file. Look and attachment happen under a lock (flock(2)) on the file, so that neither two
// goroutines nor two processes that use this package attach one file twice. A program that does not take the lock,
// such as losetup(8), can still slip in between; the device that it made is found by the next look.
//
// Detached means detached. LOOP_CLR_FD succeeds on a device that is still held, and then only promises to detach it
// later. [Detach] first claims the device exclusively, which fails while it is mounted in any mount namespace, and
// afterwards asks the kernel for the device's backing file: nil is returned when there is none, or another one.
//
// Nothing lingers. Every descriptor is closed before a function returns, is close-on-exec, and the lock ends with it. A
// process that is killed leaves a device attached or free, never half of it, and no lock.
//
// The functions may be called from several goroutines at once. They look at ctx between their steps; a step itself is
// a system call of microseconds unless the filesystem that holds the backing file hangs. They need CAP_SYS_ADMIN, and a
// kernel of 5.8 or newer for attaching in one step; an older one does it in two. Everywhere but on Linux every
// function returns an error that matches mount.ErrUnsupported.
package loop
