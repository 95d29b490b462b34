// Package ownership gives the content of a volume to a group. A pod whose processes run in that group can then use it.
// Kubernetes calls this fsGroup.
//
// # What is done
//
//	report, err := ownership.Apply(ctx, staged, ownership.Options{
//		Group:    args.FsGroup,
//		Policy:   args.FSGroupChangePolicy,
//		ReadOnly: readOnly,
//	})
//
// Everything in the tree gets the group. Files get the mode bits 0660, and directories 0770 and setgid, so files that are
// made in them later inherit the group. With Options.ReadOnly the bits are 0440, and 0550 with setgid. Bits are only added;
// all other bits stay. A symbolic link gets the group itself and has no mode; its target is not touched. A file with several
// names in the tree is changed once. A file that is right already is not changed, not even its change time: if everything is
// right, nothing is written to disk, not even an access time.
//
// Files lose the bits setuid and setgid, and their capabilities, when the group changes, because chown(2) removes them: the
// owner should grant them anew. Report counts these files. A file that has the group already keeps its bits.
//
// # Interrupted and repeated runs
//
// The root is changed last, and only after everything below it has succeeded. So a run that failed, was cancelled or was
// killed leaves a root that does not match. The policy OnRootMismatch, which looks only at the root, then does the work
// again. To rely on that, call Apply at every set-up, and above all if the volume is already mounted: a plugin that returns
// early then, as some of Kubernetes' own do, never finishes an interrupted run. Call Apply on the staged mount, before the
// bind mount for the pod, so a pod never starts on a half-finished volume:
//
//	stage, or find it staged
//	ownership.Apply(ctx, staged, ...)   // each time; finds out by itself whether there is something to do
//	bind, or find it bound
//
// Do not call it if IsRemount says that the volume is only refreshed, or for a volume whose content this pod may not change:
// hostPath, and most shared network filesystems.
//
// The policy OnRootMismatch cannot see a change below a root that is right. It accepts that.
//
// # Errors that Kubernetes ignores
//
// Kubernetes logs that a file could not be changed, and continues. The pod then cannot read it, and no error says why
// (kubernetes 78130). Here the error, a [*FailedError], has every failure: the first one and the first of each kind as text,
// and the number of all. errors.Is finds the errno: unix.EPERM for an immutable file, unix.ENOSPC or unix.EDQUOT for a full
// disk or quota, unix.EROFS for a read-only filesystem. A failure does not end the run, so the next run has less to do; a
// failure of the whole filesystem does end it. A file that is removed meanwhile is no failure. A filesystem that reports
// success but keeps its own group or mode is detected at the root: [ErrNotKept].
//
// The [Report] says what was changed, and why the tree was or was not skipped. It is valid with an error too.
//
// # Safe against writers inside the volume
//
// The workload of an earlier pod, or a running one, may rename, link and unlink in the tree at any time. Apply opens each
// entry that it must change without access (O_PATH) and checks it again. It changes group and mode through that descriptor,
// never by name. A link that is swapped in gets the group itself at most, and is never followed. To swap one file for
// another has no effect either: the mode of one is never given to the other, which could make a program of root setuid.
// Apply crosses no mount, neither of another filesystem nor a bind mount of the same one. It leaves what is mounted inside
// unchanged, and counts it. But every name inside the tree belongs to it: a file with a second hard link elsewhere is
// changed there as well.
//
// # How it ends
//
// When ctx ends, Apply stops before its next file, does not touch the root, and returns an error that matches the context's.
// A filesystem that does not answer cannot be stopped: then Apply abandons the work and returns an error that matches
// [ErrUncertain] and has the methods Uncertain() bool and Done() <-chan struct{}. Done is closed when the work has really
// ended. Do not begin again on that volume before.
//
// Options.Progress and an event report long runs, as in Kubernetes: after half a minute, and then every minute.
//
// # When not to use it
//
// If the filesystem can be mounted with the group (vfat, CIFS), or id-mapped, do that instead: it is immediate and
// permanent. For a new and empty directory, a chown and a chmod suffice. The package needs Linux and, for files of other
// users, CAP_CHOWN, CAP_FOWNER and CAP_FSETID. Elsewhere every call returns an error that matches errors.ErrUnsupported.
package ownership
