package objects

import (
	"cmp"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// ClassOf returns the name of the claim's class, "" if it requests none or leaves it open.
func ClassOf(claim *v1.PersistentVolumeClaim) string {
	if class, ok := claim.Annotations[v1.BetaStorageClassAnnotation]; ok {
		return class
	}
	return Deref(claim.Spec.StorageClassName)
}

// LeavesClassOpen reports whether the claim neither names a class nor requests none.
func LeavesClassOpen(claim *v1.PersistentVolumeClaim) bool {
	_, annotated := claim.Annotations[v1.BetaStorageClassAnnotation]
	return !annotated && claim.Spec.StorageClassName == nil
}

// ClassOfVolume returns the name of the volume's class, "" for none.
func ClassOfVolume(pv *v1.PersistentVolume) string {
	if class, ok := pv.Annotations[v1.BetaStorageClassAnnotation]; ok {
		return class
	}
	return pv.Spec.StorageClassName
}

// DefaultClass returns the newest default class; of several with one age, the first by name; nil if there is none.
func DefaultClass(classes []*storagev1.StorageClass) *storagev1.StorageClass {
	var best *storagev1.StorageClass
	for _, class := range classes {
		if !isDefault(class) {
			continue
		}
		if best == nil || cmp.Or(
			best.CreationTimestamp.Compare(class.CreationTimestamp.Time),
			cmp.Compare(class.Name, best.Name),
		) < 0 {
			best = class
		}
	}
	return best
}

func isDefault(class *storagev1.StorageClass) bool {
	return class.Annotations[AnnDefaultClass] == "true" || class.Annotations[annBetaDefaultClass] == "true"
}

// WaitsForConsumer reports whether the class binds only after the node of the claim's pod is known.
func WaitsForConsumer(class *storagev1.StorageClass) bool {
	return class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// ReclaimPolicy returns the reclaim policy of new volumes of the class.
func ReclaimPolicy(class *storagev1.StorageClass) v1.PersistentVolumeReclaimPolicy {
	if class.ReclaimPolicy == nil {
		return v1.PersistentVolumeReclaimDelete
	}
	return *class.ReclaimPolicy
}
