// Package mount mounts, unmounts and reads the mount table. It is a leaf: it knows nothing of volumes. A program that
// mounts filesystems and must survive dead servers can use it alone.
//
// # The life of a mount
//
// A plugin is given an [Interface]. On Linux that is a [Mounter], which makes system calls and never runs mount(8) or
// umount(8):
//
//	m := mount.New(mount.Options{Logger: logger})
//	err := m.Mount(ctx, mount.Request{
//		Source:  "/srv/data",
//		Target:  "/run/agent/pods/42/data",
//		Options: []string{"bind", "ro", "nosuid", "nodev"},
//	})
//
// Mount opens the target first, or its parent where the target is missing, and follows no symbolic link. It then works on
// the open descriptor, so that a process which writes beside the target cannot redirect the mount. It makes a missing
// target, with the directories above, and removes what it made when the mount fails. The bind is read-only from its first
// instant: no workload can write through it at any moment, not even after a crash.
//
// To look:
//
//	mounted, err := m.IsMountPoint(ctx, target) // by statx, which does not wait for the filesystem
//	top, err := m.Lookup(ctx, target)           // the facts of one mount, in the same time however many there are
//	paths, err := m.GetMountRefs(ctx, target)   // where else the same is shown
//	stack, err := m.Stack(ctx, target)          // all that an unmount would take off
//	table, err := m.List(ctx)                   // the whole table, decoded, and kept until there is a change
//
// To recognise a mount later, and to tell it from a foreign mount in its place, keep its identity:
//
//	ours := top.Identity()
//	now, err := m.Lookup(ctx, target)
//	foreign := err == nil && !ours.Is(now)
//
// An unmount that expects an identity leaves every other mount alone. The error then matches [ErrForeign]:
//
//	err = m.Unmount(ctx, target, mount.UnmountOptions{Expect: ours})
//
// To receive every change of the mount table, by this process or another:
//
//	err := m.Watch(ctx, func(c mount.TableChange) { ... }) // until ctx ends
//
// To end it:
//
//	err = mount.UnmountPath(ctx, m, target, mount.UnmountOptions{})
//
// That unmounts every mount at the target, verifies it in the mount table, and removes the directory with rmdir. It never
// deletes content. It succeeds when there is nothing left to do, and can be repeated.
//
// # How calls end
//
// An error says how the call ended. It matches [ErrUncertain] when the effect may be there or may still come: tear down
// before you forget it, set up again before you use it. It matches [ErrTransient] when nothing was begun. Every other
// error means that the effect is not there. The errno is kept: errors.Is(err, unix.EBUSY) works.
//
// A system call on a dead server can last for ever, and nothing can interrupt it. Each operation therefore runs in a
// goroutine of its own, except for lookups that the kernel answers from memory. When the context ends first, the operation
// is abandoned: the caller gets an [*AbandonedError] at once, and the error's channel Done closes when the operation has ended.
// Until then a second operation on the same path fails with [ErrStuck] and does not start. Operations on other paths
// continue, until [Options].MaxAbandoned are abandoned. A call that a plugin makes with the context of the operation executor
// needs no goroutine: when it hangs, the executor abandons the plugin's whole call. Nor does one whose context never ends,
// such as context.Background(), because its caller waits for the end.
//
// The kernel answers these lookups from memory on FUSE, NFS, CIFS, Ceph and all local filesystems. For the root of a mount
// of 9p (without a cache), gfs2, ocfs2 or orangefs it queries the server, whatever flags it gets: on a dead server of these,
// IsMountPoint, Lookup and GetMountRefs may outlast the context. List does not.
//
// # How an unmount goes
//
// Unmount looks up the mounts at the path and unmounts them plainly. It believes neither success nor failure: it reads the
// path again, and queries the kernel for the same mounts by their unique ids (or the mount table, on kernels without ids).
// With [UnmountOptions].Force it repeats a plain unmount that is busy, or waits for one that does not return. Then it aborts
// the filesystem (MNT_FORCE), looks, and unmounts plainly again. With Lazy it detaches a mount that is still busy.
//
// Unmount waits for a plain umount2 that does not return until the context ends, with Lazy too. Such a call either has
// removed the mount from the tree already and waits for its server, so that there is nothing left to detach; or it waits for
// the filesystem in which the mount point lies, and a lazy unmount would wait for the same. Unmount the mount above first,
// with Force if necessary.
//
// A mount that is gone here may exist elsewhere: a copy in another mount namespace keeps the filesystem and its device in
// use. The kernel does not report copies. It also lets the directory be removed, which unmounts the copy.
//
// # Filesystems that need a helper
//
// Some filesystems are mounted by a program, mount.TYPE. [Options].Helpers names the types for which a Mounter may run it.
// [Helper] describes the program's input, and which of its results a Mounter verifies.
//
// # Untrusted input
//
// Options that come from a volume's spec belong into [Request].UserOptions, over which [Request].Options have the last
// word; secrets into Sensitive. A path with an element ".." is refused, and so is a link in the path of a target. The path
// of a bind's source is followed through links, since a host path may have them. To bind what lies in a directory that
// others can write to, use mount/safepath; or open it with openat2 (RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS) as O_PATH and
// give /proc/self/fd/N, which leads to what was opened and to nothing else. Keep that descriptor open until Mount has
// returned. An abandoned call does not use it any more.
//
// # Words
//
// A bind shows a directory or a file at a second place. The mount table is /proc/self/mountinfo. A path is a mount point
// when something is mounted at that very path and is not hidden by a later mount on one of its parents. Mounts at the
// same path are stacked: only the last is seen. A mount has options of its own ("ro", "nosuid") beside those of its
// filesystem, which all mounts of that filesystem share. Propagation says whether mounts made below a mount appear in
// its copies. A new mount is private unless the request says otherwise. Whether the mount itself appears elsewhere depends
// on the mount that holds the target: an agent in a container reaches the host through a directory that is shared with the
// host, and an unmount there unmounts on the host too.
//
// # When not to use this package
//
// It does not format, check or grow a filesystem; mount/format does. It does not find loop devices; mount/loop does. A
// filesystem that needs a helper, without one named, can be mounted only when the options hold what the helper would have
// found out (for NFS: addr=). To open files inside a volume that a workload can write, use mount/safepath, or descriptors
// and openat2; a checked path is not a safe path. To make a container's root filesystem, use your
// runtime. It needs /proc. It mounts in the namespace of the process: a goroutine whose thread was moved into another is
// not followed there. On other systems than Linux every method returns an error that matches [ErrUnsupported].
package mount
