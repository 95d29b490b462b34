package objects

import (
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// StorageOf returns a key of the storage that a volume names: volumes with the same key may have the same storage. It is
// empty for a volume that names none. Paths and servers are compared as clean text: links on a node, and two names or addresses of one
// server, are not known here.
func StorageOf(pv *v1.PersistentVolume) string {
	if server, dir := directoryOf(pv); dir != "" {
		return server + dir
	}
	switch source := pv.Spec.PersistentVolumeSource; {
	case source == v1.PersistentVolumeSource{}:
		return ""
	case source.CSI != nil:
		return "csi " + source.CSI.Driver + " " + source.CSI.VolumeHandle
	default:
		return source.String()
	}
}

// directoryOf returns the clean path of a volume that is a directory, and whose it is: the node's, or an NFS server's. The
// path is empty for any other volume.
func directoryOf(pv *v1.PersistentVolume) (server, dir string) {
	switch source := pv.Spec.PersistentVolumeSource; {
	case source.HostPath != nil:
		return "path ", path.Clean(source.HostPath.Path)
	case source.Local != nil:
		return "path ", path.Clean(source.Local.Path)
	case source.NFS != nil:
		return "nfs " + strings.ToLower(strings.TrimSuffix(source.NFS.Server, ".")) + " ", path.Clean(source.NFS.Path)
	}
	return "", ""
}

// StoragesAround returns the keys of every storage that contains that of the volume: its own, and for a directory those of the
// directories above it. Paths are compared as text.
func StoragesAround(pv *v1.PersistentVolume) []string {
	own := StorageOf(pv)
	if own == "" {
		return nil
	}
	keys := []string{own}
	server, dir := directoryOf(pv)
	for dir != "" && dir != path.Dir(dir) {
		dir = path.Dir(dir)
		keys = append(keys, server+dir)
	}
	return keys
}

// MayContainStorageOf reports whether what removes the storage of a volume may remove that of another one too: it is the same,
// or a directory below it. Paths of nodes are different storage if the node affinities prove that no node has both.
func MayContainStorageOf(pv, other *v1.PersistentVolume) bool {
	if !slices.Contains(StoragesAround(other), StorageOf(pv)) {
		return false
	}
	isPath := pv.Spec.HostPath != nil || pv.Spec.Local != nil
	return !isPath || !onDifferentNodes(pv.Spec.NodeAffinity, other.Spec.NodeAffinity)
}

// onDifferentNodes reports whether no node can match both affinities: each term of one excludes each term of the other.
func onDifferentNodes(a, b *v1.VolumeNodeAffinity) bool {
	if a == nil || b == nil || a.Required == nil || b.Required == nil {
		return false
	}
	for _, one := range a.Required.NodeSelectorTerms {
		for _, other := range b.Required.NodeSelectorTerms {
			if !exclude(one.MatchExpressions, other.MatchExpressions) && !exclude(one.MatchFields, other.MatchFields) {
				return false
			}
		}
	}
	return true
}

// exclude reports whether the requirements of two terms need different values of one key.
func exclude(a, b []v1.NodeSelectorRequirement) bool {
	for _, one := range a {
		for _, other := range b {
			if one.Key == other.Key && one.Operator == v1.NodeSelectorOpIn && other.Operator == v1.NodeSelectorOpIn &&
				!slices.ContainsFunc(one.Values, func(value string) bool { return slices.Contains(other.Values, value) }) {
				return true
			}
		}
	}
	return false
}
