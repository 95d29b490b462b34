package objects

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
)

// ReservedFor reports whether the volume names this claim, by the claim's UID or without any.
func ReservedFor(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) bool {
	ref := pv.Spec.ClaimRef
	return ref != nil && ref.Namespace == claim.Namespace && ref.Name == claim.Name &&
		(ref.UID == "" || ref.UID == claim.UID)
}

// OwnedBy reports whether the volume is bound to this very claim.
func OwnedBy(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) bool {
	return ReservedFor(pv, claim) && pv.Spec.ClaimRef.UID == claim.UID
}

// ClaimNameOf returns the name of the claim that the volume names; it must name one.
func ClaimNameOf(pv *v1.PersistentVolume) types.NamespacedName {
	return types.NamespacedName{Namespace: pv.Spec.ClaimRef.Namespace, Name: pv.Spec.ClaimRef.Name}
}

// ClaimRef returns the reference of a volume to claim.
func ClaimRef(claim *v1.PersistentVolumeClaim) *v1.ObjectReference {
	return &v1.ObjectReference{
		APIVersion: store.PersistentVolumeClaims.GroupVersion().String(),
		Kind:       store.PersistentVolumeClaims.Kind,
		Namespace:  claim.Namespace,
		Name:       claim.Name,
		UID:        claim.UID,
	}
}

// IsUnfilled reports whether a populator must fill the volume before a claim may be bound to it.
func IsUnfilled(pv *v1.PersistentVolume) bool {
	return pv.Annotations[AnnPopulate] != "" && pv.Annotations[AnnPopulated] == ""
}

// ReadClaimOf reads the claim that the volume is bound to from the store. It returns nil if that claim is gone, even if
// another claim has its name now.
func ReadClaimOf(ctx context.Context, s store.Store, pv *v1.PersistentVolume) (*v1.PersistentVolumeClaim, error) {
	ref := pv.Spec.ClaimRef
	claim, err := store.Get[*v1.PersistentVolumeClaim](ctx, s, ref.Namespace, ref.Name)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrInvalid):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("claim of volume %q: %w", pv.Name, err)
	case claim.UID != ref.UID:
		return nil, nil
	}
	return claim, nil
}

// HasAnotherVolume reads from the store whether a claim is bound to another volume than pv: the claim names it, and it names the
// claim.
func HasAnotherVolume(ctx context.Context, s store.Store, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) (bool, error) {
	if claim.Spec.VolumeName == "" || claim.Spec.VolumeName == pv.Name {
		return false, nil
	}
	other, err := store.Get[*v1.PersistentVolume](ctx, s, "", claim.Spec.VolumeName)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrInvalid):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("volume %q of claim %q: %w", claim.Spec.VolumeName, store.NameOf(claim), err)
	}
	return OwnedBy(other, claim), nil
}

// IsDeletedWithClaim reports whether the volume was provisioned and its reclaim policy is Delete.
func IsDeletedWithClaim(pv *v1.PersistentVolume) bool {
	_, provisioned := pv.Annotations[AnnDynamicallyProvisioned]
	return provisioned && pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete
}

// ProvisionedName returns the name of a claim's new volume. It is always the same, and unique to the claim.
func ProvisionedName(claim *v1.PersistentVolumeClaim) string { return "pvc-" + string(claim.UID) }

// Named returns the name of an object that has no namespace.
func Named(name string) types.NamespacedName { return types.NamespacedName{Name: name} }

// Protect adds a finalizer to an object that is not being deleted.
func Protect(meta *metav1.ObjectMeta, finalizer string) {
	if LacksProtection(meta, finalizer) {
		meta.Finalizers = append(meta.Finalizers, finalizer)
	}
}

// LacksProtection reports whether an object that is not being deleted lacks a finalizer.
func LacksProtection(meta *metav1.ObjectMeta, finalizer string) bool {
	return meta.DeletionTimestamp == nil && !slices.Contains(meta.Finalizers, finalizer)
}

// DropFinalizer removes a finalizer from an object that is not shared.
func DropFinalizer(meta *metav1.ObjectMeta, finalizer string) {
	meta.Finalizers = slices.DeleteFunc(meta.Finalizers, func(f string) bool { return f == finalizer })
}

// Deref returns the string that s points to, "" for nil.
func Deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
