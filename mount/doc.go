// Package mount mounts and unmounts, and knows what is mounted. It is a leaf: it knows nothing of volumes, and it is
// useful by itself to a program that mounts things and must not be hurt by them.
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
// The target, or its parent where it is made, is opened first, without following any symbolic link, and everything after that is
// done to the open descriptor. Nobody who can write beside the target can make the mount land elsewhere. A target that does not exist is
// made, with the directories above it, and what was made goes again when the mount fails. The bind is read-only from its
// first instant, so that there is no moment, not even after a crash, in which a workload can write through it.
//
// To look:
//
//	mounted, err := m.IsMountPoint(ctx, target) // by statx, which does not wait for the filesystem
//	top, err := m.Lookup(ctx, target)           // the facts of one mount, in the same time however many there are
//	paths, err := m.GetMountRefs(ctx, target)   // where else the same is shown
//	stack, err := m.Stack(ctx, target)          // all that an unmount would take off
//	table, err := m.List(ctx)                   // the whole table, decoded, and kept until there is a change
//
// To know a mount again, and to tell it from one that somebody else has put in its place, keep its identity:
//
//	ours := top.Identity()
//	now, err := m.Lookup(ctx, target)
//	foreign := err == nil && !ours.Is(now)
//
// An unmount that is told which mount is meant leaves every other alone, and says [ErrForeign]:
//
//	err = m.Unmount(ctx, target, mount.UnmountOptions{Expect: ours})
//
// To be told when something is mounted, unmounted, moved or changed, by whomever:
//
//	err := m.Watch(ctx, func(c mount.Change) { ... }) // until ctx ends
//
// To end it:
//
//	err = mount.UnmountPath(ctx, m, target, mount.UnmountOptions{})
//
// That takes off every mount at the target, looks into the mount table whether this is so, and removes the directory by
// rmdir. It never deletes content, and it succeeds when there is nothing left to do, so that it can be repeated.
//
// # How calls end
//
// An error says how the call ended. It matches [ErrUncertain] when the effect may be there or may still come: tear down
// before you forget it, set up again before you use it. It matches [ErrTransient] when nothing was begun. Every other
// error means that the effect is not there. The errno is kept: errors.Is(err, unix.EBUSY) works.
//
// A system call on a dead server can last for ever, and nothing can interrupt it. Each operation therefore runs in a
// goroutine of its own, but for looks that the kernel can answer from what it has in memory. When the context ends first,
// the operation is left behind: the caller gets a [*LostError] at once, and its channel Done closes when the operation has
// really ended. One that a plugin makes with the context that the operation executor gave its call needs no goroutine: when
// it hangs, the executor leaves the plugin's whole call behind. Until then a second operation on the same path fails with [ErrStuck] and does not start. Operations on
// other paths go on, until [Options].MaxLost are lost.
//
// Of those looks the kernel answers from memory on FUSE, NFS, CIFS, Ceph and all local filesystems. The root of a mount of
// 9p (without a cache), gfs2, ocfs2 or orangefs it cannot describe without asking, though it is told not to: on a dead
// server of these IsMountPoint, Lookup and GetMountRefs may outlast the context, and List does not.
//
// # How an unmount goes
//
// It looks what is mounted at the path, unmounts plainly, and believes neither success nor failure: it looks again, and
// asks the kernel for the very mounts that it has taken off, by their unique ids (the mount table, where there are none).
// With [UnmountOptions].Force it repeats a plain unmount that is refused as busy, or waits for one that does not return,
// then aborts the filesystem (MNT_FORCE), looks, and unmounts plainly again. With Lazy a mount that is still busy is
// detached.
//
// A plain umount2 that does not return is waited for until the context ends, and Lazy does not change that. Such a call
// either has taken the mount out of the tree already and waits for its server to say good-bye, so that there is nothing
// left to detach; or it waits for the filesystem that the mount point itself lies in, for which a lazy one would wait
// likewise. Unmount what lies above first, by force if need be.
//
// Gone here is not gone everywhere: another mount namespace may have a copy, which keeps the filesystem and its device in
// use. The kernel tells nobody of that. It also lets the directory be removed, and takes the copy off with it.
//
// # Filesystems that need a helper
//
// Some filesystems are mounted by a program, mount.TYPE. [Options].Helpers names the types for which it may be run; see
// [Helper] for what it is given and what is believed of it.
//
// # Untrusted input
//
// Options that come from a volume's spec belong into [Request].UserOptions, over which [Request].Options have the last
// word; secrets into Sensitive. A path with an element ".." is refused, and so is a link in the path of a target. The path
// of a bind's source is followed through links, since a host path may have them. To bind what lies in a directory that
// others can write to, use mount/safepath; or open it with openat2 (RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS) as O_PATH and
// give /proc/self/fd/N, which leads to what was opened and to nothing else. Keep that descriptor open until Mount has
// returned; a call that was left behind does not use it any more.
//
// # Words
//
// A bind shows a directory or a file at a second place. The mount table is /proc/self/mountinfo. A path is a mount point
// when something is mounted at that very path and is not hidden by a later mount on one of its parents. Mounts at the
// same path are stacked: only the last is seen. A mount has options of its own ("ro", "nosuid") beside those of its
// filesystem, which all mounts of that filesystem share. Propagation says whether mounts made below a mount appear in
// its copies; a mount that is made here is private unless the request says otherwise. Its own appearance elsewhere is
// decided by the mount that the target lies on: an agent in a container reaches the host through a directory that is
// shared with it, and what is unmounted there goes on the host too.
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
