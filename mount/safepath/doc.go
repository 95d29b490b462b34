// Package safepath opens, makes, removes and binds files below a directory in which untrusted programs write. A workload
// that can write to a volume can put a symbolic link in place of any directory in it, at any moment, also between a check
// and the use of the checked path. Containers have escaped to the host in this way several times (CVE-2017-1002101,
// CVE-2021-25741).
//
// # Beneath a root
//
// A [Root] is an open directory. Every name is relative to it. The kernel resolves a name in one step that cannot leave the
// root (openat2 with RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS and RESOLVE_NO_MAGICLINKS). A descriptor holds the result, and
// all further work uses the descriptor, not the name:
//
//	root, err := safepath.Open(ctx, "/var/lib/agent/pods/42/volumes/data", safepath.Options{Mounter: mounter})
//	defer root.Close()
//	err = root.MkdirAll(ctx, "logs/today", safepath.MkdirOptions{Mode: fs.ModeSetgid | 0o770})
//	file, err := root.Open(ctx, "logs/today/index", safepath.RegularFile)
//	err = root.Bind(ctx, "logs/today", "/run/agent/target", safepath.BindOptions{ReadOnly: true})
//	err = root.RemoveAll(ctx, "logs")
//
// If the kernel has no openat2 (before Linux 5.6) or a sandbox forbids it, each element is opened by itself, as a
// descriptor without access (O_PATH) that follows no link, and checked before it is entered. The guarantees are the same.
//
// # Sub-paths
//
// A container may get a part of a volume. [Subpaths] opens that part safely and binds it at a path where the workload
// cannot write:
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
// A name is a path relative to the root, with slashes. An element is one part of it. Beneath the root is everything that
// can be reached from it downwards without a link. A mark is a name beside a sub-path's mount point that says what should
// be mounted there.
//
// # What is guaranteed
//
//   - Nothing outside of the root is opened, made, changed or removed, whatever is renamed or linked meanwhile. A link is
//     never followed, not even one to a place beneath the root: the error matches [ErrEscapes].
//   - A device, a named pipe or a socket is never opened: its type is checked first. If another type was expected, the
//     error is a [*KindError].
//   - RemoveAll enters no mount. If the mount table shows one inside, it removes nothing at all. If one appears later, it
//     stops there, and the content of the mount stays whole. Trees may have any depth.
//   - A sub-path's mount is unmounted only with proof that it is ours. Content beneath a mount point is never removed.
//   - Each call returns soon after its context has ended. A call that hangs in a filesystem is abandoned: the error matches
//     mount.ErrUncertain and has the method Done. Until that channel closes, no other call begins on the same root.
//   - Errors contain paths of the host. [Public] returns what the owner of a pod may see.
//
// # When not to use this package
//
// If no other program can write there, package os is simpler. For plain files with os.File only, os.Root is enough; but its
// RemoveAll empties what is mounted below, it cannot bind, and it cannot abandon a call when a server hangs. To remove a
// mount point use mount.Interface. To walk a volume for its usage or its owners use volume/usage and volume/ownership. The
// package needs /proc. On systems other than Linux every call returns an error that matches mount.ErrUnsupported, except
// the clean-up of sub-paths: it succeeds, because there are none.
package safepath
