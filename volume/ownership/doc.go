// Package ownership gives the content of a volume to a group, so that a pod whose processes run as anybody in that group
// can use it: what Kubernetes calls fsGroup.
//
// # What is done
//
//	report, err := ownership.Apply(ctx, staged, ownership.Options{
//		Group:    args.FsGroup,
//		Policy:   args.FSGroupChangePolicy,
//		ReadOnly: readOnly,
//	})
//
// Everything in the tree gets the group. Files get the mode bits 0660, directories 0770 and setgid, so that what is made in
// them later inherits the group; with Options.ReadOnly it is 0440, and 0550 with setgid. Bits are only added: those of
// others, and those that are there beyond these, stay. A symbolic link gets the group itself and has no mode; what it leads
// to is not touched. A file with several names in the tree is changed once. What is right already is not changed, and not
// even its change time: where all is right, nothing is written to disk, not an access time either.
//
// The bits setuid and setgid of files, and their capabilities, are lost when the group changes, since the kernel takes them
// away at chown(2) and whoever gives a program to another group should say anew what it may do. Report counts them. A file
// that has the group already keeps its bits.
//
// # Interrupted, and done again
//
// The root comes last of all, and only after everything beneath it has succeeded. A run that failed, was cancelled or was
// killed therefore leaves a root that does not match, and the policy OnRootMismatch, which looks at nothing but the root,
// does the work again instead of trusting it. To have this, call Apply at every set-up, and above all when the volume turns
// out to be mounted already: a plugin that returns early then, as some of Kubernetes' own do, never finishes what a crash
// has cut short. Apply before the volume is bound to where the pod sees it (on the staged mount), so that a pod never
// starts on a volume that is half done:
//
//	stage, or find it staged
//	ownership.Apply(ctx, staged, ...)   // each time; finds out by itself whether there is something to do
//	bind, or find it bound
//
// Do not apply it when IsRemount says that the volume is only refreshed, nor to a volume whose content is not this pod's to
// change: hostPath, and most shared network filesystems.
//
// What the policy OnRootMismatch cannot see: a tree that was right at the root and was changed beneath it since. That is
// its bargain.
//
// # Errors, and what Kubernetes swallows
//
// Kubernetes logs that a file could not be changed, and goes on; the pod then cannot read it and nobody knows why
// (kubernetes 78130). Here every failure is in the error, a [*FailedError]: the first of them and the first of each kind in
// words, all of them in number, and errors.Is finds the errno: unix.EPERM for an immutable file, unix.ENOSPC or unix.EDQUOT
// for a full disk or quota, unix.EROFS for a filesystem that has gone read-only. One failure does not end the run, so that
// the next one finds less to do, but for one that the whole filesystem has. What vanishes while it is changed is no failure.
// A filesystem that pretends to obey and keeps its own group or mode is found out at the root: [ErrNotKept].
//
// The [Report] says what was changed, and why the tree was or was not skipped. It is valid beside an error too.
//
// # Safe against who writes inside the volume
//
// The workload of an earlier pod, or one that runs beside, may rename, link and unlink in the tree all the while. Each
// entry that must be changed is opened first without access (O_PATH) and asked again, and its group and mode are changed
// through that descriptor, never by name. A link that is swapped in has its own group changed, at most, and is never
// followed. Nor does it help to swap one file for another: the mode of one is never given to the other, which could make a
// program of root's a setuid one. No mount is crossed, neither one of another filesystem nor a bind of the same one: what
// is mounted inside is left as it is, and counted. What has a name inside the tree does belong to it, though: a file
// with a second, hard link elsewhere is changed there as well.
//
// # How it ends
//
// When ctx ends, Apply stops before its next file, touches the root no more, and returns an error that matches the
// context's. A filesystem that does not answer cannot be stopped: Apply then abandons the work and returns an
// error that matches [ErrUncertain] and has the methods Uncertain() bool and Done() <-chan struct{}. Done is closed when
// the work has really ended. Do not begin again on that volume before.
//
// Of work that takes long Options.Progress and an event tell, as Kubernetes does: after half a minute, and then every
// minute.
//
// # When not to use it
//
// Where the filesystem can be mounted with the group (vfat, CIFS), or id-mapped, that is done at once and for ever. For a
// directory that was made a moment ago and is empty a chown and a chmod of it are enough. The package needs Linux and, but
// for what belongs to its own user, CAP_CHOWN, CAP_FOWNER and CAP_FSETID; elsewhere every call returns an error that
// matches errors.ErrUnsupported.
package ownership
