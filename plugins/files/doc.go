// Package files holds the plugins of volumes that show objects as files: the sources configMap, secret, downwardAPI and
// projected of a pod's volume, each a plugin with Kubernetes' name.
//
//	plugins.InitPlugins(ctx,
//		files.NewConfigMap(objects, files.Options{}),
//		files.NewSecret(objects, files.Options{}),
//		files.NewDownwardAPI(node, files.Options{}),
//		files.NewProjected(files.Getters{ConfigMaps: objects, Secrets: objects, Tokens: tokens, Node: node}, files.Options{}),
//	)
//
// Where the content comes from is given to the constructors, as interfaces of one method. An object that does not exist is an
// error of theirs that matches [ErrNotFound].
//
// # One way for all
//
// The first three sources are projected volumes with one source, and are treated as such. SetUp gets all content first, so that
// nothing is made when something is missing; then it makes the directory, or finds the one that is there, and publishes the
// files in one rename (volume/atomicwriter): a reader sees the old files or the new ones. It is called again whenever the pod
// is updated (RequiresRemount), and writes nothing when nothing has changed. A set-up that fails takes away what it has made,
// and leaves a volume that was there before as it was.
//
// Config maps lie on the node's disk. All else lies in a tmpfs, since secrets must never reach a disk, and ends with its unmount.
// Its mark (mount.IsMemoryOf) proves that it is the one that SetUp mounted: another mount at the path is left alone.
// So is a directory on disk that is not proven to be the one that SetUp made (mount/owned).
// The containers get every volume read-only.
//
// Whatever touches the node's filesystem goes through [Directories]: with fake.Mounter for that and for the mounts, volumes are
// in memory alone.
//
// # What the files are
//
//   - Without items each key of a config map or secret is a file; with items those keys are, at their paths. A key or an
//     object that is missing is an error, unless the source is optional.
//   - The mode is that of the item, else the defaultMode of the volume, else 0644. A token's is 0600 where the pod has a user
//     or a group of its own, which can then read it all the same.
//   - With an fsGroup everything belongs to that group, which may read it.
//   - Two sources that give the same path are refused; in Kubernetes the last one wins without a word.
//   - The downward API gives metadata.name, .namespace, .uid, .labels, .annotations, one label or annotation by its key, and
//     requests and limits of a container. A limit that is not set is what the node can allocate.
//
// # Secrets
//
// No error, and nothing that is logged or recorded, holds content of an object: errors name objects, keys and paths. What the
// errors of the given getters hold is theirs.
//
// Pod certificates are not served: the error matches volume.ErrUnsupported.
package files
