// Package safepath opens, makes, removes and binds what lies beneath a directory, for those who do not trust whoever
// writes there. A workload that can write to a volume can put a symbolic link in the place of any directory in it, at any
// moment, also between a check and the use of what was checked. Containers have escaped to the host in this way again and
// again (CVE-2017-1002101, CVE-2021-25741).
//
// # Beneath a root
//
// A [Root] is an open directory. Every name is relative to it and is resolved by the kernel in one step that cannot leave
// it (openat2 with RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS and RESOLVE_NO_MAGICLINKS). What is found is held by a descriptor,
// and whatever follows is done to the descriptor and not to the name:
//
//	root, err := safepath.Open(ctx, "/var/lib/agent/pods/42/volumes/data", safepath.Options{Mounter: mounter})
//	defer root.Close()
//	err = root.MkdirAll(ctx, "logs/today", safepath.MkdirOptions{Mode: fs.ModeSetgid | 0o770})
//	file, err := root.Open(ctx, "logs/today/index", safepath.RegularFile)
//	err = root.Bind(ctx, "logs/today", "/run/agent/target", safepath.BindOptions{ReadOnly: true})
//	err = root.RemoveAll(ctx, "logs")
//
// Where the kernel has no openat2 (before Linux 5.6) or a sandbox forbids it, each element is opened by itself, as a
// descriptor without access (O_PATH) that follows no link, and is looked at before it is entered. The guarantees are the
// same.
//
// # Sub-paths
//
// A container may be given a part of a volume. [Subpaths] binds that part, which it has opened safely, to a place where
// the workload cannot write:
//
//	subpaths := safepath.NewSubpaths(mounter, safepath.SubpathsOptions{})
//	source, err := subpaths.Prepare(ctx, safepath.Subpath{
//		Owner:      safepath.Owner{PodDir: podDir, VolumeName: "data", ContainerName: "web"},
//		VolumePath: volumePath, Path: "sites/a", VolumeMountIndex: 0,
//	})
//	// Give source to the runtime; it is podDir/volume-subpaths/data/web/0. When the container has ended:
//	err = subpaths.CleanContainer(ctx, owner, mount.UnmountOptions{})
//
// # Words
//
// A name is a path relative to the root, with slashes. An element is one part of it. Beneath the root is what can be
// reached from it downwards without a link. A mark is a name beside a sub-path's mount point that says what was to be
// mounted there.
//
// # What is guaranteed
//
//   - Nothing outside of the root is opened, made, changed or removed, whatever is renamed or linked meanwhile. A link is
//     never followed, not even one that leads to a place beneath the root: the error matches [ErrEscapes].
//   - A device, a named pipe or a socket is never opened: it is looked at first. Where something else was expected the
//     error is a [*KindError].
//   - RemoveAll enters no mount. Where the mount table shows one inside, nothing at all is removed; one that appears later
//     stops the work where it is met, and what is in it stays whole. Trees may be of any depth.
//   - A sub-path's mount is taken off only when it is provably ours. No content is ever removed from beneath a mount point.
//   - Each call returns soon after its context has ended. One that hangs in a filesystem is abandoned: the error matches
//     mount.ErrUncertain and has the method Done, and until that channel closes no further call begins on the same root.
//   - Errors hold paths of the host. What may be shown to the owner of a pod is [Public].
//
// # When not to use this package
//
// Where nobody else can write, package os is simpler. For plain files with os.File only, os.Root is enough; but its
// RemoveAll empties what is mounted below, and it can neither bind nor be abandoned when a server hangs. A mount point is
// removed by mount.Interface. To walk a volume for its usage or its owners use volume/usage and volume/ownership. The
// package needs /proc. On other systems than Linux every call returns an error that matches mount.ErrUnsupported; but to
// clean sub-paths succeeds, since there are none.
package safepath
