// Package hostpath is the plugin of volumes that are a path of the node: the hostPath source of a pod's volume or of a
// PersistentVolume.
//
// It mounts nothing. SetUp checks that the path has the volume's type and, for the types DirectoryOrCreate and FileOrCreate,
// makes what is missing. GetPath is then the path itself, which the container runtime binds. TearDown changes nothing: the
// content belongs to the node.
//
// # What is checked
//
//   - The path is absolute and has no element "..".
//   - With every link followed, the path is not the node's own root, nor in it, nor above it. A pod that could reach the
//     mounts of other pods could undo them, and a bind mount of a tree into itself multiplies it.
//   - The file at the path, with links followed, has the type. SetUp does not open it, so a named pipe never blocks.
//
// A missing directory or file is made beneath a descriptor of the lowest existing directory, which is compared with the node's
// own root. No link that appears in between is followed. The same holds for a sub-path of the volume: the compared directory
// is the one that is bound ([volume.ApartKeeper]).
//
// The container runtime opens the path itself, so the check holds only at its moment. A workload that may write to a directory
// above the path can replace it later: use paths whose parents belong only to the node.
//
// # Making and removing volumes
//
// With [Options].BaseDir the plugin provisions: a volume is a directory BaseDir/NAME of this node, and its node affinity names
// the node. Every user of a pod may write to it (mode 0777, below a base of mode 0700). Its size is not enforced.
//
// Only volumes in the base directory are recycled or deleted, checked by path and on disk, and only those whose node affinity
// is none or names this node. They are removed beneath a descriptor of the base, where no link is followed and no mount entered
// (mount/safepath). The base must be apart from the node's root, as every path must.
//
// All content of the directory is removed, also the directory of another PersistentVolume in it. The plugin does not know the
// other volumes: its caller must. controller/persistentvolume does not delete or recycle a volume while the path of another
// PersistentVolume lies in its own. It compares paths as text and follows no links, and it does not compare the hostPath
// volumes of pods.
//
// All access to the node's filesystem goes through [Files]. With fake.Mounter for it, volumes are only in memory.
//
// A volume cannot be rebuilt from a directory, because none is made for it.
package hostpath
