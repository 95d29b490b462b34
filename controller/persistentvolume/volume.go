package persistentvolume

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
)

// volumeChanged is called when a volume is new, changed or gone.
func (c *Controller) volumeChanged(pv *v1.PersistentVolume) {
	c.stock.refresh(pv.Name)
	c.work.add(volumeItem, store.NameOf(pv))
	if pv.Spec.ClaimRef != nil {
		c.work.add(claimItem, claimNameOf(pv))
	}
	for _, claim := range c.claimsNaming.Get(pv.Name) {
		c.work.add(claimItem, store.NameOf(claim))
	}
}

// claimNameOf returns the name of the claim that the volume names.
func claimNameOf(pv *v1.PersistentVolume) types.NamespacedName {
	return types.NamespacedName{Namespace: pv.Spec.ClaimRef.Namespace, Name: pv.Spec.ClaimRef.Name}
}

// offer wakes the claim that is to have a volume which is free. The volume is kept for it, so that no claim that is woken at the same
// time and asks for less takes it, and the larger claim gets none. It reports whether the volume is kept for one now: that claim
// takes it, or it is looked at again.
func (c *Controller) offer(pv *v1.PersistentVolume) (isKept bool) {
	return c.stock.offer(pv, func(pv *v1.PersistentVolume) (types.NamespacedName, bool) {
		claim, waits := c.waiters.offer(pv)
		if !waits {
			return claim, false
		}
		// One that a worker has may be in a call that hangs. It gets the volume if that is there when it comes back.
		busy := c.work.isBusy(item{claimItem, claim})
		c.work.add(claimItem, claim)
		return claim, !busy
	})
}

// syncVolume does the next thing for one volume.
func (c *Controller) syncVolume(ctx context.Context, name string) error {
	pv, ok := c.volumes.Get(volumeKey(name))
	if !ok {
		return nil
	}
	ref := pv.Spec.ClaimRef
	switch {
	case pv.DeletionTimestamp != nil && (ref == nil || ref.UID == ""):
		return c.letGo(ctx, pv)
	case ref == nil && pv.Status.Phase == v1.VolumeAvailable && c.offer(pv):
		return nil // A write would only be in the way of who takes it.
	case ref == nil || ref.UID == "":
		pv, err := c.setPhase(ctx, pv, v1.VolumeAvailable, "")
		if err == nil && ref == nil {
			c.offer(pv)
		}
		return err
	}
	claimName := claimNameOf(pv)
	claim, ok := c.claims.Get(claimName)
	if ok && claim.UID == ref.UID && claim.Spec.VolumeName == pv.Name {
		_, err := c.setPhase(ctx, pv, v1.VolumeBound, "")
		return err
	}
	// All that follows could cost somebody a volume: what memory says is not enough.
	claim, err := c.claimOf(ctx, pv)
	switch {
	case err != nil:
		return err
	case claim == nil && c.work.isBusy(item{claimItem, claimName}):
		// Its worker may just have learnt that, and gives the volume back if the claim never had it.
		return fmt.Errorf("claim %q of volume %q is being looked at: %w", claimName, pv.Name, store.ErrConflict)
	case claim == nil:
		return c.release(ctx, pv)
	case claim.Spec.VolumeName == "":
		c.work.add(claimItem, store.NameOf(claim)) // to finish its bind, or to say why it cannot
		return awaitChange(c.claims, claim)
	case claim.Spec.VolumeName == pv.Name:
		if _, err := c.setPhase(ctx, pv, v1.VolumeBound, ""); err != nil {
			return err
		}
		return awaitChange(c.claims, claim)
	case spare(pv):
		return c.release(ctx, pv)
	}
	return c.unbind(ctx, pv)
}

// claimOf reads the claim that the volume is bound to from the store; nil means that it is gone, be it that another of
// its name has come.
func (c *Controller) claimOf(ctx context.Context, pv *v1.PersistentVolume) (*v1.PersistentVolumeClaim, error) {
	ref := pv.Spec.ClaimRef
	claim, err := store.Get[*v1.PersistentVolumeClaim](ctx, c.store, ref.Namespace, ref.Name)
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

// spare reports whether the volume was made for a claim that has another one now, and is to go with its claim.
func spare(pv *v1.PersistentVolume) bool {
	_, provisioned := pv.Annotations[AnnDynamicallyProvisioned]
	return provisioned && pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete
}

// letGo takes our finalizers off.
func (c *Controller) letGo(ctx context.Context, pv *v1.PersistentVolume) error {
	return c.dropFinalizers(ctx, pv, FinalizerVolume, FinalizerVolumeProtection)
}

// dropFinalizers takes finalizers off. That the object is gone with them, or was, is no error.
func (c *Controller) dropFinalizers(ctx context.Context, pv *v1.PersistentVolume, finalizers ...string) error {
	changed := pv.DeepCopy()
	for _, finalizer := range finalizers {
		dropFinalizer(&changed.ObjectMeta, finalizer)
	}
	if len(changed.Finalizers) == len(pv.Finalizers) {
		return nil
	}
	updated, err := store.Update(ctx, c.store, changed)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("update volume %q: %w", pv.Name, err)
	}
	if len(updated.Finalizers) > 0 || updated.DeletionTimestamp == nil {
		c.seen(updated)
	}
	return nil
}
