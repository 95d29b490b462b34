package objects

import (
	"path"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// StorageOf returns a key of the storage that a volume names: volumes with the same key may have the same storage. It is
// empty for a volume that names none.
func StorageOf(pv *v1.PersistentVolume) string {
	switch source := pv.Spec.PersistentVolumeSource; {
	case source == v1.PersistentVolumeSource{}:
		return ""
	case source.CSI != nil:
		return "csi " + source.CSI.Driver + " " + source.CSI.VolumeHandle
	case source.HostPath != nil:
		return "path " + path.Clean(source.HostPath.Path)
	case source.Local != nil:
		return "path " + path.Clean(source.Local.Path)
	case source.NFS != nil:
		return "nfs " + source.NFS.Server + " " + path.Clean(source.NFS.Path)
	default:
		return source.String()
	}
}

// MayShareStorage reports whether two volumes may have the same storage. Equal paths are different storage only if the node
// affinities prove that no node has both.
func MayShareStorage(a, b *v1.PersistentVolume) bool {
	if StorageOf(a) == "" || StorageOf(a) != StorageOf(b) {
		return false
	}
	isPath := a.Spec.HostPath != nil || a.Spec.Local != nil
	return !isPath || !onDifferentNodes(a.Spec.NodeAffinity, b.Spec.NodeAffinity)
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
