// Package files has the plugins of volumes that show objects as files: the sources configMap, secret, downwardAPI and projected
// of a pod's volume, each a plugin with Kubernetes' name.
//
//	plugins.InitPlugins(ctx,
//		files.NewConfigMap(objects, files.Options{}),
//		files.NewSecret(objects, files.Options{}),
//		files.NewDownwardAPI(node, files.Options{}),
//		files.NewProjected(files.Getters{ConfigMaps: objects, Secrets: objects, Tokens: tokens, Node: node}, files.Options{}),
//	)
//
// The constructors take the sources of the content, as interfaces of one method. If an object does not exist, these return an
// error that matches [ErrNotFound].
//
// # One way for all sources
//
// The first three sources are treated as projected volumes with one source. SetUp reads all content first, so it makes nothing
// if something is missing. Then it makes the directory, or finds the existing one, and publishes the files in one rename
// (volume/atomicwriter): a reader sees the old files or the new ones. It is called again whenever the pod is updated
// (RequiresRemount), and writes nothing if nothing has changed. A set-up that fails removes what it made, and leaves an earlier
// volume unchanged.
//
// Config maps lie on the node's disk. All other content lies in a tmpfs, because secrets must never reach a disk, and ends with
// its unmount. The mark of the tmpfs (mount.IsMemoryOf) proves that SetUp mounted it; another mount at the path is left alone.
// So is a directory on disk that is not proven to be the one that SetUp made (mount/owned). The containers get every volume
// read-only.
//
// All access to the node's filesystem goes through [Directories]. With fake.Mounter for that and for the mounts, volumes are
// only in memory.
//
// # What the files are
//
//   - Without items each key of a config map or secret is a file. With items only those keys are, at their paths. A missing key
//     or object is an error, unless the source is optional.
//   - The mode is that of the item, otherwise the defaultMode of the volume, otherwise 0644. A token has 0600 if the pod has a
//     user or a group of its own, which can still read it.
//   - With an fsGroup everything belongs to that group, which may read it.
//   - Two sources with the same path are refused; in Kubernetes the last one wins silently.
//   - The downward API has metadata.name, .namespace, .uid, .labels, .annotations, one label or annotation by its key, and
//     requests and limits of a container. A limit that is not set is what the node can allocate.
//
// # Secrets
//
// No error, log or record contains the content of an object: errors name objects, keys and paths. The text of the getters' own
// errors is up to the getters.
//
// Pod certificates are not supported: the error matches volume.ErrUnsupported.
package files
