// Package bind writes claims and volumes: it binds them to each other, undoes binds, and protects both while they are bound.
package bind

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/store"
)

// ErrUnfilled says that a volume is not bound because a populator has not filled it.
var ErrUnfilled = errors.New("the volume was made to be filled from a data source, and is not full")

// Binder writes claims and volumes. The mirrors have its writes at once. Make it with [New]. Its methods may be called
// from several goroutines at once.
type Binder struct {
	store   store.Store
	claims  *store.Mirror[*v1.PersistentVolumeClaim]
	volumes *store.Mirror[*v1.PersistentVolume]
	refresh func(volumeName string)
}

// New returns a Binder that writes to s. It calls refresh with each volume that it has written, after the mirror has it.
func New(
	s store.Store, claims *store.Mirror[*v1.PersistentVolumeClaim], volumes *store.Mirror[*v1.PersistentVolume], refresh func(volumeName string),
) *Binder {
	return &Binder{store: s, claims: claims, volumes: volumes, refresh: refresh}
}

// Bind binds claim and volume to each other: in one transaction if the store has transactions, otherwise with four
// writes. It skips writes that were made before, and so completes an interrupted bind. It writes the volume first: a
// claim is never bound to a volume that does not name it. For a volume that is not full it returns [ErrUnfilled].
func (b *Binder) Bind(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) error {
	if objects.IsUnfilled(pv) {
		return fmt.Errorf("claim %q is not bound to volume %q: %w", store.NameOf(claim), pv.Name, ErrUnfilled)
	}
	if together, ok := b.store.(store.Transactor); ok {
		return b.bindAtOnce(ctx, together, claim, pv)
	}
	given := !objects.OwnedBy(pv, claim)
	if given {
		if err := b.Confirm(ctx, claim); err != nil {
			return err
		}
	}
	pv, err := b.changeVolume(ctx, pv, naming(pv, claim))
	if err != nil {
		return err
	}
	pv, err = b.SetPhase(ctx, pv, v1.VolumeBound, "")
	if err != nil {
		return err
	}
	bound, err := b.changeClaim(ctx, claim, having(claim, pv))
	if errors.Is(err, store.ErrNotFound) && given {
		return errors.Join(err, b.Unbind(ctx, pv)) // the claim was deleted and never had the volume
	}
	if err != nil {
		return err
	}
	_, err = b.changeClaim(ctx, bound, boundTo(bound, pv))
	return err
}

// Confirm reads the claim from the store. It returns an error if the claim is gone or has changed: the volume must not
// be given to it.
func (b *Binder) Confirm(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	now, err := store.Get[*v1.PersistentVolumeClaim](ctx, b.store, claim.Namespace, claim.Name)
	if err != nil {
		return fmt.Errorf("claim %q is not bound: %w", store.NameOf(claim), err)
	}
	if now.UID != claim.UID || now.ResourceVersion != claim.ResourceVersion {
		return fmt.Errorf("claim %q is not bound: %w", store.NameOf(claim), store.ErrConflict)
	}
	return nil
}

// SetPhase writes the volume's phase, unless the volume has it already.
func (b *Binder) SetPhase(
	ctx context.Context, pv *v1.PersistentVolume, phase v1.PersistentVolumePhase, message string,
) (*v1.PersistentVolume, error) {
	return b.changeVolume(ctx, pv, inPhase(pv, phase, message))
}

// changeVolume writes a volume unless it is the same object as before.
func (b *Binder) changeVolume(ctx context.Context, before, changed *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	if changed == before {
		return before, nil
	}
	return b.UpdateVolume(ctx, changed)
}

// changeClaim writes a claim unless it is the same object as before.
func (b *Binder) changeClaim(ctx context.Context, before, changed *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	if changed == before {
		return before, nil
	}
	return b.UpdateClaim(ctx, changed)
}

// Unbind undoes the first write of a bind. It removes a reference that a controller chose, and only the UID of a
// reference that a user made.
func (b *Binder) Unbind(ctx context.Context, pv *v1.PersistentVolume) error {
	changed := pv.DeepCopy()
	if _, chosen := pv.Annotations[objects.AnnBoundByController]; chosen {
		changed.Spec.ClaimRef = nil
		delete(changed.Annotations, objects.AnnBoundByController)
	} else if changed.Spec.ClaimRef != nil {
		changed.Spec.ClaimRef.UID = ""
	}
	changed, err := b.UpdateVolume(ctx, changed)
	if err != nil {
		return err
	}
	_, err = b.SetPhase(ctx, changed, v1.VolumeAvailable, "")
	return err
}

// UpdateVolume writes a volume with the protection finalizer.
func (b *Binder) UpdateVolume(ctx context.Context, pv *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	objects.Protect(&pv.ObjectMeta, objects.FinalizerVolumeProtection)
	updated, err := store.Update(ctx, b.store, pv)
	if err != nil {
		return nil, fmt.Errorf("update volume %q: %w", pv.Name, err)
	}
	b.Put(updated)
	return updated, nil
}

// Put adds a volume that was just written to the mirror.
func (b *Binder) Put(pv *v1.PersistentVolume) {
	b.volumes.Put(pv)
	b.refresh(pv.Name)
}

// UpdateClaim writes a claim with the protection finalizer.
func (b *Binder) UpdateClaim(ctx context.Context, claim *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	objects.Protect(&claim.ObjectMeta, objects.FinalizerClaimProtection)
	updated, err := store.Update(ctx, b.store, claim)
	if err != nil {
		return nil, fmt.Errorf("update claim %q: %w", store.NameOf(claim), err)
	}
	b.claims.Put(updated)
	return updated, nil
}

// ProtectClaim adds the controller's finalizer to a claim, and changes nothing else.
func (b *Binder) ProtectClaim(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	if !objects.LacksProtection(&claim.ObjectMeta, objects.FinalizerClaimProtection) {
		return nil
	}
	_, err := b.UpdateClaim(ctx, claim.DeepCopy())
	return err
}

// Release removes the controller's finalizers from a volume.
func (b *Binder) Release(ctx context.Context, pv *v1.PersistentVolume) error {
	return b.DropFinalizers(ctx, pv, objects.FinalizerVolume, objects.FinalizerVolumeProtection)
}

// DropFinalizers removes finalizers from a volume. A missing volume is no error.
func (b *Binder) DropFinalizers(ctx context.Context, pv *v1.PersistentVolume, finalizers ...string) error {
	changed := pv.DeepCopy()
	for _, finalizer := range finalizers {
		objects.DropFinalizer(&changed.ObjectMeta, finalizer)
	}
	if len(changed.Finalizers) == len(pv.Finalizers) {
		return nil
	}
	updated, err := store.Update(ctx, b.store, changed)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("update volume %q: %w", pv.Name, err)
	}
	if len(updated.Finalizers) > 0 || updated.DeletionTimestamp == nil {
		b.Put(updated)
	}
	return nil
}
