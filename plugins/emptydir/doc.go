// Package emptydir is the plugin of scratch space that begins empty with a pod and ends with it: the emptyDir source of a
// pod's volume.
//
// The medium "" is a directory on the node's own filesystem, "Memory" is a tmpfs; huge pages are not served. Everybody may
// write to the volume (mode 0777, whatever the umask of the process). With an fsGroup it belongs to that group, and new
// files inherit it.
//
// # A set-up is whole or not there
//
// A directory is made under another name, given its mode and group, and then renamed, so that a crash never leaves one
// that looks ready and is not, and a second SetUp never touches what a workload has changed since. A tmpfs has its mode and
// group from the first instant, as options of the mount.
//
// # How content is deleted
//
// TearDown deletes what the workload has left, and the workload may have left anything. What is at the path, mounted or
// not, is asked of the world, since a plugin that was restarted knows no more than the names. Then:
//
//   - The tmpfs that SetUp mounted is unmounted, which ends its content. Its mark (mount.IsMemoryOf) proves that it is the
//     one. Any other mount at the path, another tmpfs too, is left alone, and the error matches mount.ErrForeign.
//   - A directory is emptied if it is proven to be the one that SetUp made (mount/owned); a symbolic link in the pod's directory
//     of plugins keeps the proof. Another directory at the path, such as one of a mount over a parent, is left alone, and the
//     error matches owned.ErrUnproven. SetUp does not use such a directory either.
//   - It is emptied through descriptors: no link is followed and no mount is crossed. Where the mount table shows a mount
//     inside, nothing at all is deleted, and the error matches volume.ErrInUse.
//
// # Size
//
// A tmpfs is as large as the smallest of these: the size limit, the memory limit of the pod, and the memory that Options.Node says the
// pods of the node may use. A pod has a memory limit of its own, or one when each of its containers has. Where none of them is
// known it is as large as the kernel makes it, half of the memory of the machine. The limit of a directory is not enforced: see
// GetMetrics for what it uses.
package emptydir
