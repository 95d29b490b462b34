package bind

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/volume"
)

// The functions of this file return a changed copy of an object, or the same object if nothing changes.

// boundPair returns the volume and the claim in the state of a complete bind.
func boundPair(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) (*v1.PersistentVolume, *v1.PersistentVolumeClaim) {
	pv = inPhase(naming(pv, claim), v1.VolumeBound, "")
	return pv, boundTo(having(claim, pv), pv)
}

// naming returns the volume with a reference to the claim.
func naming(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) *v1.PersistentVolume {
	if objects.OwnedBy(pv, claim) && !objects.LacksProtection(&pv.ObjectMeta, objects.FinalizerVolumeProtection) {
		return pv
	}
	changed := pv.DeepCopy()
	if pv.Spec.ClaimRef == nil {
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, objects.AnnBoundByController, objects.Yes)
	}
	changed.Spec.ClaimRef = objects.ClaimRef(claim)
	objects.Protect(&changed.ObjectMeta, objects.FinalizerVolumeProtection)
	return changed
}

// inPhase returns the volume in a phase, with the protection finalizer.
func inPhase(pv *v1.PersistentVolume, phase v1.PersistentVolumePhase, message string) *v1.PersistentVolume {
	if pv.Status.Phase == phase && pv.Status.Message == message && !objects.LacksProtection(&pv.ObjectMeta, objects.FinalizerVolumeProtection) {
		return pv
	}
	changed := pv.DeepCopy()
	objects.Protect(&changed.ObjectMeta, objects.FinalizerVolumeProtection)
	if pv.Status.Phase != phase {
		now := metav1.Now().Rfc3339Copy()
		changed.Status.LastPhaseTransitionTime = &now
	}
	changed.Status.Phase, changed.Status.Message, changed.Status.Reason = phase, message, ""
	return changed
}

// having returns the claim with a reference to the volume. This ends the provisioning of the claim.
func having(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) *v1.PersistentVolumeClaim {
	_, completed := claim.Annotations[objects.AnnBindCompleted]
	done := claim.Spec.VolumeName == pv.Name && completed && !slices.Contains(claim.Finalizers, objects.FinalizerProvisioning)
	if done && !objects.LacksProtection(&claim.ObjectMeta, objects.FinalizerClaimProtection) {
		return claim
	}
	changed := claim.DeepCopy()
	if claim.Spec.VolumeName != pv.Name {
		changed.Spec.VolumeName = pv.Name
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, objects.AnnBoundByController, objects.Yes)
	}
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, objects.AnnBindCompleted, objects.Yes)
	objects.DropFinalizer(&changed.ObjectMeta, objects.FinalizerProvisioning)
	objects.Protect(&changed.ObjectMeta, objects.FinalizerClaimProtection)
	return changed
}

// boundTo returns the claim with a status that describes its volume. It writes capacity and volume attributes class only
// when the claim becomes bound. Later they belong to the controllers that expand and modify volumes.
func boundTo(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) *v1.PersistentVolumeClaim {
	changed := claim.DeepCopy()
	cleared := volume.ClearUnbound(changed)
	if !cleared && claim.Status.Phase == v1.ClaimBound && slices.Equal(claim.Status.AccessModes, pv.Spec.AccessModes) {
		return claim
	}
	if claim.Status.Phase != v1.ClaimBound {
		changed.Status.Capacity = reachedCapacity(pv)
		changed.Status.CurrentVolumeAttributesClassName = pv.Spec.VolumeAttributesClassName
	}
	changed.Status.Phase = v1.ClaimBound
	changed.Status.AccessModes = slices.Clone(pv.Spec.AccessModes)
	return changed
}

// reachedCapacity returns the capacity that a volume has for certain. During an expansion it is less than the capacity
// in the spec.
func reachedCapacity(pv *v1.PersistentVolume) v1.ResourceList {
	reached := maps.Clone(pv.Spec.Capacity)
	if before, err := resource.ParseQuantity(pv.Annotations[objects.AnnPreResizeCapacity]); err == nil && reached != nil {
		reached[v1.ResourceStorage] = before
	}
	return reached
}

// WithoutVolume removes the description of a volume from the status of a claim, and sets the phase. It reports whether that
// changed the claim, which must not be shared.
func WithoutVolume(claim *v1.PersistentVolumeClaim, phase v1.PersistentVolumeClaimPhase) (changed bool) {
	status := &claim.Status
	changed = status.Phase != phase || status.AccessModes != nil || status.Capacity != nil || status.CurrentVolumeAttributesClassName != nil
	status.Phase, status.AccessModes, status.Capacity, status.CurrentVolumeAttributesClassName = phase, nil, nil, nil
	return changed
}

// IsWhole reports whether the two objects show that every write of their bind was made.
func IsWhole(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) bool {
	return objects.OwnedBy(pv, claim) && pv.Status.Phase == v1.VolumeBound && pv.Status.Message == "" &&
		claim.Status.Phase == v1.ClaimBound && slices.Equal(claim.Status.AccessModes, pv.Spec.AccessModes) &&
		!slices.Contains(claim.Finalizers, objects.FinalizerProvisioning) &&
		!objects.LacksProtection(&claim.ObjectMeta, objects.FinalizerClaimProtection) &&
		!objects.LacksProtection(&pv.ObjectMeta, objects.FinalizerVolumeProtection)
}
