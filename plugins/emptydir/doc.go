// Package emptydir is the plugin of scratch space that begins empty with a pod and ends with it: the emptyDir source of a pod's
// volume.
//
// The medium "" is a directory on the node's own filesystem, "Memory" is a tmpfs. Huge pages are refused. Every user may write
// to the volume (mode 0777, whatever the umask of the process). With an fsGroup it belongs to that group, and new files inherit
// the group.
//
// # A set-up is complete or absent
//
// SetUp makes a directory under another name, sets its mode and group, and then renames it. So a crash never leaves a directory
// that only looks ready, and a second SetUp never changes what a workload has changed since. A tmpfs has its mode and group
// from the start, as mount options.
//
// # How content is deleted
//
// TearDown deletes whatever the workload has left. A restarted plugin knows only the names, so it reads from the kernel what is
// at the path, mounted or not. Then:
//
//   - It unmounts the tmpfs that SetUp mounted, which ends its content. The mark of the tmpfs (mount.IsMemoryOf) is the proof.
//     It leaves every other mount at the path alone, another tmpfs too; the error matches mount.ErrForeign.
//   - It empties a directory if that is proven to be the one that SetUp made (mount/owned); a symbolic link in the pod's
//     directory of plugins keeps the proof. It leaves another directory at the path alone, such as one of a mount over a
//     parent; the error matches owned.ErrUnproven. SetUp does not use such a directory either.
//   - It empties through descriptors, follows no link and crosses no mount. If the mount table shows a mount inside, it deletes
//     nothing at all; the error matches volume.ErrInUse.
//   - If nothing is at the path, the volume counts as gone, also if another program has moved its directory away. What was moved
//     is not deleted: its mover must.
//
// # Size
//
// A tmpfs has the smallest of these sizes: the size limit, the memory limit of the pod, and the memory that Options.Node allows
// to the pods of the node. A pod has a memory limit of its own, or one if each of its containers has. If none of them is known,
// the kernel's default applies: half of the machine's memory. The limit of a directory is not enforced: GetMetrics reports what
// it uses.
package emptydir
