package persistentvolume

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
)

// bestReserved returns the volume that claim gets of those that name it, whatever their classes and labels, or nil: the one
// with the fewest access modes, of these the smallest, of these the first by name.
func bestReserved(claim *v1.PersistentVolumeClaim, volumes []*v1.PersistentVolume) *v1.PersistentVolume {
	var best *v1.PersistentVolume
	for _, pv := range volumes {
		if usable(claim, pv) && reservedFor(pv, claim) && (best == nil || better(pv, best)) {
			best = pv
		}
	}
	return best
}

// unfitReserved returns a volume that names the claim and cannot be had, and why: whoever wrote that must be told.
func unfitReserved(claim *v1.PersistentVolumeClaim, volumes []*v1.PersistentVolume) (*v1.PersistentVolume, string) {
	for _, pv := range volumes {
		if !reservedFor(pv, claim) {
			continue
		}
		switch {
		case pv.DeletionTimestamp != nil:
			return pv, "it is being deleted"
		case !large(claim, pv):
			return pv, "it is smaller than the claim asks for"
		case !sameMode(claim, pv):
			return pv, "its volume mode is another"
		case !sameAttributesClass(claim, pv):
			return pv, "its volume attributes class is another"
		case !hasModes(claim, pv):
			return pv, lacksMode
		}
	}
	return nil, ""
}

// usable reports whether nothing about the volume itself speaks against the claim.
func usable(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) bool {
	return pv.DeletionTimestamp == nil &&
		(pv.Spec.ClaimRef == nil || reservedFor(pv, claim)) &&
		large(claim, pv) && sameMode(claim, pv) && sameAttributesClass(claim, pv) && hasModes(claim, pv)
}

// free reports whether a volume that names no claim may go to this one: not to one that asks for a copy of another.
func free(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, selector labels.Selector) bool {
	return unused(pv) && !hasSource(claim) &&
		selector.Matches(labels.Set(pv.Labels)) &&
		classOfVolume(pv) == classOf(claim)
}

// unused reports whether no claim has had the volume. One that nobody has looked at yet counts: a claim that is looked at
// before it would else be given a new volume beside one that fits.
func unused(pv *v1.PersistentVolume) bool {
	switch pv.Status.Phase {
	case v1.VolumeAvailable, v1.VolumePending, "":
		return true
	default:
		return false
	}
}

// better reports whether a is to be preferred to b.
func better(a, b *v1.PersistentVolume) bool {
	sizeA, sizeB := capacity(a), capacity(b)
	return cmp.Or(
		cmp.Compare(len(a.Spec.AccessModes), len(b.Spec.AccessModes)),
		sizeA.Cmp(sizeB),
		cmp.Compare(a.Name, b.Name),
	) < 0
}

// Why a volume cannot be had.
const (
	unreachable = "its node affinity excludes the node of the claim"
	lacksMode   = "it lacks an access mode that the claim asks for"
)

// misfit returns why a volume that the claim names, and that is free or names the claim too, cannot be had, or "". What
// names each other only needs to work.
func misfit(claim *v1.PersistentVolumeClaim, node *v1.Node, pv *v1.PersistentVolume) string {
	switch {
	case !sameMode(claim, pv):
		return "its volume mode is another"
	case !reachable(pv, node):
		return unreachable
	case reservedFor(pv, claim):
		return ""
	case pv.DeletionTimestamp != nil:
		return "it is being deleted"
	case !large(claim, pv):
		return "it is smaller than the claim asks for"
	case classOfVolume(pv) != classOf(claim):
		return "its storage class is another"
	case !sameAttributesClass(claim, pv):
		return "its volume attributes class is another"
	case !hasModes(claim, pv):
		return lacksMode
	}
	return ""
}

// reservedFor reports whether the volume names this claim, be it with the claim's UID or without any.
func reservedFor(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) bool {
	ref := pv.Spec.ClaimRef
	return ref != nil && ref.Namespace == claim.Namespace && ref.Name == claim.Name &&
		(ref.UID == "" || ref.UID == claim.UID)
}

// ownedBy reports whether the volume is bound to this very claim.
func ownedBy(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) bool {
	return reservedFor(pv, claim) && pv.Spec.ClaimRef.UID == claim.UID
}

func capacity(pv *v1.PersistentVolume) resource.Quantity { return pv.Spec.Capacity[v1.ResourceStorage] }

func large(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) bool {
	have, want := capacity(pv), claim.Spec.Resources.Requests[v1.ResourceStorage]
	return have.Cmp(want) >= 0
}

func sameMode(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) bool {
	return modeOf(claim.Spec.VolumeMode) == modeOf(pv.Spec.VolumeMode)
}

func modeOf(mode *v1.PersistentVolumeMode) v1.PersistentVolumeMode {
	if mode == nil {
		return v1.PersistentVolumeFilesystem
	}
	return *mode
}

func sameAttributesClass(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) bool {
	return deref(claim.Spec.VolumeAttributesClassName) == deref(pv.Spec.VolumeAttributesClassName)
}

func hasModes(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) bool {
	return hasAllModes(claim, pv.Spec.AccessModes)
}

// hasAllModes reports whether modes has all those that the claim asks for.
func hasAllModes(claim *v1.PersistentVolumeClaim, modes []v1.PersistentVolumeAccessMode) bool {
	for _, mode := range claim.Spec.AccessModes {
		if !slices.Contains(modes, mode) {
			return false
		}
	}
	return true
}

// classOf returns the name of the claim's class, "" when it asks for none or leaves it open.
func classOf(claim *v1.PersistentVolumeClaim) string {
	if class, ok := claim.Annotations[v1.BetaStorageClassAnnotation]; ok {
		return class
	}
	return deref(claim.Spec.StorageClassName)
}

// classIsOpen reports whether the claim neither names a class nor refuses to have one.
func classIsOpen(claim *v1.PersistentVolumeClaim) bool {
	_, annotated := claim.Annotations[v1.BetaStorageClassAnnotation]
	return !annotated && claim.Spec.StorageClassName == nil
}

func classOfVolume(pv *v1.PersistentVolume) string {
	if class, ok := pv.Annotations[v1.BetaStorageClassAnnotation]; ok {
		return class
	}
	return pv.Spec.StorageClassName
}

// defaultClass returns the newest of the default classes, of several of one age the first by name; nil when there is
// none.
func defaultClass(classes []*storagev1.StorageClass) *storagev1.StorageClass {
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

// waitsForConsumer reports whether the class binds when the node of the claim's pod is known.
func waitsForConsumer(class *storagev1.StorageClass) bool {
	return class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
