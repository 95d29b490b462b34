package objects

import (
	"path"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
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

// MayShareStorage reports whether two volumes may have the same storage. Paths on different nodes are
// different storage.
func MayShareStorage(a, b *v1.PersistentVolume) bool {
	if StorageOf(a) == "" || StorageOf(a) != StorageOf(b) {
		return false
	}
	isPath := a.Spec.HostPath != nil || a.Spec.Local != nil
	return !isPath || a.Spec.NodeAffinity == nil || b.Spec.NodeAffinity == nil ||
		equality.Semantic.DeepEqual(a.Spec.NodeAffinity, b.Spec.NodeAffinity)
}
