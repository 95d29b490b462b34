package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// bind makes the claim and the volume each other's: at once in a store that can, otherwise by four writes. Each is left out when
// it was made before, so that a bind that was broken off is finished by calling bind again. The volume comes first: a claim is
// never bound to a volume that does not know it.
func (c *Controller) bind(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) error {
	if together, ok := c.store.(store.Transactor); ok {
		return c.bindAtOnce(ctx, together, claim, pv)
	}
	given := !ownedBy(pv, claim)
	if given {
		if err := c.confirm(ctx, claim); err != nil {
			return err
		}
	}
	pv, err := c.bindVolume(ctx, pv, claim)
	if err != nil {
		return err
	}
	pv, err = c.setPhase(ctx, pv, v1.VolumeBound, "")
	if err != nil {
		return err
	}
	bound, err := c.bindClaim(ctx, claim, pv)
	if errors.Is(err, store.ErrNotFound) && given {
		return errors.Join(err, c.unbind(ctx, pv)) // the claim went away and never had the volume
	}
	if err != nil {
		return err
	}
	if err := c.setClaimBound(ctx, bound, pv); err != nil {
		return err
	}
	c.served(store.NameOf(claim))
	return nil
}

// confirm reads the claim again, so that no volume is given to one that is gone or has changed.
func (c *Controller) confirm(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	now, err := store.Get[*v1.PersistentVolumeClaim](ctx, c.store, claim.Namespace, claim.Name)
	if err != nil {
		return fmt.Errorf("claim %q is not bound: %w", store.NameOf(claim), err)
	}
	if now.UID != claim.UID || now.ResourceVersion != claim.ResourceVersion {
		return fmt.Errorf("claim %q is not bound: %w", store.NameOf(claim), store.ErrConflict)
	}
	return nil
}

// bindVolume is the first write: the volume names the claim.
func (c *Controller) bindVolume(ctx context.Context, pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) (*v1.PersistentVolume, error) {
	changed, changes := naming(pv, claim)
	if !changes {
		return pv, nil
	}
	return c.updateVolume(ctx, changed)
}

// naming returns a volume that names the claim, and false when it does already.
func naming(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) (*v1.PersistentVolume, bool) {
	if ownedBy(pv, claim) && !unprotected(&pv.ObjectMeta, FinalizerVolumeProtection) {
		return pv, false
	}
	changed := pv.DeepCopy()
	if pv.Spec.ClaimRef == nil {
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, AnnBoundByController, yes)
	}
	changed.Spec.ClaimRef = claimRef(claim)
	protect(&changed.ObjectMeta, FinalizerVolumeProtection)
	return changed, true
}

// claimRef returns the reference of a volume to claim.
func claimRef(claim *v1.PersistentVolumeClaim) *v1.ObjectReference {
	return &v1.ObjectReference{
		APIVersion: store.PersistentVolumeClaims.GroupVersion().String(),
		Kind:       store.PersistentVolumeClaims.Kind,
		Namespace:  claim.Namespace,
		Name:       claim.Name,
		UID:        claim.UID,
	}
}

// setPhase writes the volume's phase, as the second write of a bind and elsewhere, unless it is that already.
func (c *Controller) setPhase(
	ctx context.Context, pv *v1.PersistentVolume, phase v1.PersistentVolumePhase, message string,
) (*v1.PersistentVolume, error) {
	changed, changes := inPhase(pv, phase, message)
	if !changes {
		return pv, nil
	}
	return c.updateVolume(ctx, changed)
}

// inPhase returns a volume in a phase, with our finalizer, and false when it is that already.
func inPhase(pv *v1.PersistentVolume, phase v1.PersistentVolumePhase, message string) (*v1.PersistentVolume, bool) {
	if pv.Status.Phase == phase && pv.Status.Message == message && !unprotected(&pv.ObjectMeta, FinalizerVolumeProtection) {
		return pv, false
	}
	changed := pv.DeepCopy()
	protect(&changed.ObjectMeta, FinalizerVolumeProtection)
	if pv.Status.Phase != phase {
		now := metav1.Now().Rfc3339Copy()
		changed.Status.LastPhaseTransitionTime = &now
	}
	changed.Status.Phase, changed.Status.Message, changed.Status.Reason = phase, message, ""
	return changed, true
}

// bindClaim is the third write: the claim names the volume. Whatever was begun to make the volume is over with it.
func (c *Controller) bindClaim(
	ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume,
) (*v1.PersistentVolumeClaim, error) {
	changed, changes := having(claim, pv)
	if !changes {
		return claim, nil
	}
	return c.updateClaim(ctx, changed)
}

// having returns a claim that names the volume, and false when it does already.
func having(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) (*v1.PersistentVolumeClaim, bool) {
	_, completed := claim.Annotations[AnnBindCompleted]
	done := claim.Spec.VolumeName == pv.Name && completed && !slices.Contains(claim.Finalizers, FinalizerProvisioning)
	if done && !unprotected(&claim.ObjectMeta, FinalizerClaimProtection) {
		return claim, false
	}
	changed := claim.DeepCopy()
	if claim.Spec.VolumeName != pv.Name {
		changed.Spec.VolumeName = pv.Name
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, AnnBoundByController, yes)
	}
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, AnnBindCompleted, yes)
	dropFinalizer(&changed.ObjectMeta, FinalizerProvisioning)
	protect(&changed.ObjectMeta, FinalizerClaimProtection)
	return changed, true
}

// setClaimBound is the fourth write: the claim's phase, and what its volume is.
func (c *Controller) setClaimBound(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) error {
	changed, changes := boundTo(claim, pv)
	if !changes {
		return nil
	}
	_, err := c.updateClaim(ctx, changed)
	return err
}

// boundTo returns a claim whose status says what its volume is, and false when it does already. Capacity and volume attributes class
// are only written when the claim becomes bound: later they belong to those who expand and modify volumes.
func boundTo(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) (*v1.PersistentVolumeClaim, bool) {
	changed := claim.DeepCopy()
	cleared := volume.ClearUnbound(changed)
	if !cleared && claim.Status.Phase == v1.ClaimBound && slices.Equal(claim.Status.AccessModes, pv.Spec.AccessModes) {
		return claim, false
	}
	if claim.Status.Phase != v1.ClaimBound {
		changed.Status.Capacity = reachedCapacity(pv)
		changed.Status.CurrentVolumeAttributesClassName = pv.Spec.VolumeAttributesClassName
	}
	changed.Status.Phase = v1.ClaimBound
	changed.Status.AccessModes = slices.Clone(pv.Spec.AccessModes)
	return changed, true
}

// reachedCapacity returns what a volume holds for certain: less than its capacity says while it is being expanded.
func reachedCapacity(pv *v1.PersistentVolume) v1.ResourceList {
	reached := maps.Clone(pv.Spec.Capacity)
	if before, err := resource.ParseQuantity(pv.Annotations[AnnPreResizeCapacity]); err == nil && reached != nil {
		reached[v1.ResourceStorage] = before
	}
	return reached
}

// withoutVolume takes out of the status of a claim what it says of a volume, and sets the phase. It reports whether that is news. The
// claim must not be shared.
func withoutVolume(claim *v1.PersistentVolumeClaim, phase v1.PersistentVolumeClaimPhase) (changed bool) {
	status := &claim.Status
	changed = status.Phase != phase || status.AccessModes != nil || status.Capacity != nil || status.CurrentVolumeAttributesClassName != nil
	status.Phase, status.AccessModes, status.Capacity, status.CurrentVolumeAttributesClassName = phase, nil, nil, nil
	return changed
}

// unbind undoes the first write of a bind: a reference that a controller chose goes as a whole, one that a user made loses
// only its UID.
func (c *Controller) unbind(ctx context.Context, pv *v1.PersistentVolume) error {
	changed := pv.DeepCopy()
	if _, chosen := pv.Annotations[AnnBoundByController]; chosen {
		changed.Spec.ClaimRef = nil
		delete(changed.Annotations, AnnBoundByController)
	} else if changed.Spec.ClaimRef != nil {
		changed.Spec.ClaimRef.UID = ""
	}
	changed, err := c.updateVolume(ctx, changed)
	if err != nil {
		return err
	}
	_, err = c.setPhase(ctx, changed, v1.VolumeAvailable, "")
	return err
}

// updateVolume writes a volume, protected from deletion while it is bound.
func (c *Controller) updateVolume(ctx context.Context, pv *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	protect(&pv.ObjectMeta, FinalizerVolumeProtection)
	updated, err := store.Update(ctx, c.store, pv)
	if err != nil {
		return nil, fmt.Errorf("update volume %q: %w", pv.Name, err)
	}
	c.seen(updated)
	return updated, nil
}

// seen takes over a volume that was just written.
func (c *Controller) seen(pv *v1.PersistentVolume) {
	c.volumes.Put(pv)
	c.stock.refresh(pv.Name)
}

// updateClaim writes a claim, protected from deletion while pods use it.
func (c *Controller) updateClaim(ctx context.Context, claim *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	protect(&claim.ObjectMeta, FinalizerClaimProtection)
	updated, err := store.Update(ctx, c.store, claim)
	if err != nil {
		return nil, fmt.Errorf("update claim %q: %w", store.NameOf(claim), err)
	}
	c.claims.Put(updated)
	return updated, nil
}

func dropFinalizer(meta *metav1.ObjectMeta, finalizer string) {
	meta.Finalizers = slices.DeleteFunc(meta.Finalizers, func(f string) bool { return f == finalizer })
}

// volumeKey returns the name under which a volume is kept in memory.
func volumeKey(name string) types.NamespacedName { return types.NamespacedName{Name: name} }
