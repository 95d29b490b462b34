// Package hostpath is the plugin of volumes that are a path of the node: the hostPath source of a pod's volume or of a
// PersistentVolume.
//
// It mounts nothing. SetUp checks that the path is what the volume's type says and, for the types DirectoryOrCreate and
// FileOrCreate, makes what is missing; GetPath is then the path itself, which the container's runtime binds. TearDown
// leaves everything as it is: the content belongs to the node.
//
// # What is checked
//
//   - The path is absolute and has no element "..".
//   - The path, with every link followed, is not the node's own root, nothing in it and nothing above it: a pod that
//     could reach the mounts of other pods could undo them, and binding a tree into itself multiplies it.
//   - What is at the path, with links followed, is of the type. Nothing is opened, so that a named pipe never blocks.
//
// What is missing is made beneath a descriptor of the lowest directory that is there, which is compared with the node's own
// root; no link that comes in between is followed. The same holds for a sub-path of the volume: the directory that is compared
// is the one that is bound ([volume.ApartKeeper]).
//
// For the path itself, which the container's runtime opens, the check holds when it is made. A workload that may write to a
// directory above the path can put something else there later: give paths whose parents belong to the node alone.
//
// # Making and removing volumes
//
// With [Options].BaseDir the plugin provisions: a volume is a directory BaseDir/NAME of this node, which its node affinity
// names, for every user of a pod (mode 0777, behind a base of mode 0700). Nothing holds it to its size.
//
// What is recycled or deleted lies in the base, by its text and on disk: it is removed beneath a descriptor of the base, where
// no link is followed and no mount entered (mount/safepath). The base is as far apart from the node's root as every path
// must be.
//
// Whatever touches the node's filesystem goes through [Files]: with fake.Mounter for it, volumes are in memory alone.
//
// A volume cannot be rebuilt from a directory, because none is made for it.
package hostpath
