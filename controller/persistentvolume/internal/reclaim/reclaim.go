// Package reclaim applies the reclaim policies of volumes whose claims are gone. It destroys nothing before the store
// and the reporter of mounts have proven that nothing uses the volume.
package reclaim

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/bind"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/inuse"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/storage"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// Options are the dependencies of a [Reclaimer]. All are required.
type Options struct {
	// Store has the claims and volumes; Claims is the mirror of the claims.
	Store  store.Store
	Claims *store.Mirror[*v1.PersistentVolumeClaim]
	// Users finds the users of a volume; Plugins and Storage find and call plugins; Binder writes volumes.
	Users   *inuse.Tracker
	Plugins *volume.VolumePluginMgr
	Storage *storage.Plugins
	Binder  *bind.Binder
	// Queue has the back-off of volumes; Events records events about them.
	Queue  *work.Queue
	Events volume.EventRecorder
}

// Reclaimer reclaims volumes. Make it with [New]. Its methods may be called from several goroutines at once, for one volume by one at a
// time.
type Reclaimer struct{ with Options }

// New returns a Reclaimer.
func New(options Options) *Reclaimer { return &Reclaimer{options} }

// Reclaim applies the reclaim policy of a volume whose claim is gone. An empty policy means Retain.
func (r *Reclaimer) Reclaim(ctx context.Context, pv *v1.PersistentVolume) error {
	if phase := pv.Status.Phase; phase != v1.VolumeFailed && phase != v1.VolumeReleased {
		released, err := r.with.Binder.SetPhase(ctx, pv, v1.VolumeReleased, pv.Status.Message)
		if err != nil {
			return err
		}
		pv = released
	}
	switch policy := pv.Spec.PersistentVolumeReclaimPolicy; policy {
	case v1.PersistentVolumeReclaimRetain, "":
		if pv.DeletionTimestamp != nil {
			return r.with.Binder.Release(ctx, pv)
		}
		_, err := r.with.Binder.SetPhase(ctx, pv, pv.Status.Phase, pv.Status.Message) // which protects it
		return err
	case v1.PersistentVolumeReclaimDelete:
		return r.deleteStorage(ctx, pv)
	case v1.PersistentVolumeReclaimRecycle:
		return r.recycleStorage(ctx, pv)
	default:
		return r.fail(ctx, pv, objects.ReasonVolumeUnknownReclaimPolicy,
			fmt.Sprintf("reclaim policy %q is not known: use Retain or Delete", policy))
	}
}

// fail sets the volume's phase to Failed with the reason, and records one event: an operator must act.
func (r *Reclaimer) fail(ctx context.Context, pv *v1.PersistentVolume, why, message string) error {
	if pv.Status.Phase != v1.VolumeFailed || pv.Status.Message != message {
		failed, err := r.with.Binder.SetPhase(ctx, pv, v1.VolumeFailed, message)
		if err != nil {
			return err
		}
		r.with.Events.Eventf(pv, v1.EventTypeWarning, why, "%s", message)
		pv = failed
	}
	return r.abandon(ctx, pv)
}

// abandon removes the finalizers of a deleted volume object that is not reclaimed here: it is not bound.
func (r *Reclaimer) abandon(ctx context.Context, pv *v1.PersistentVolume) error {
	if pv.DeletionTimestamp == nil {
		return nil
	}
	return r.with.Binder.DropFinalizers(ctx, pv, objects.FinalizerVolumeProtection)
}

// deleteStorage deletes the storage and then the object.
func (r *Reclaimer) deleteStorage(ctx context.Context, pv *v1.PersistentVolume) error {
	pv, err := r.reclaimable(ctx, pv, objects.ReasonVolumeDelete)
	if err != nil || pv == nil {
		return err
	}
	if r.with.Storage.IsExternal(pv) {
		return r.abandon(ctx, pv)
	}
	plugin, err := r.with.Storage.Deleter(pv)
	if err != nil {
		return r.fail(ctx, pv, objects.ReasonVolumeFailedDelete, fmt.Sprintf("nothing here can delete it: %v", err))
	}
	if err := r.with.Storage.Delete(ctx, plugin, pv); err != nil {
		return r.callFailed(ctx, pv, objects.ReasonVolumeFailedDelete, fmt.Errorf("volume %q is not deleted: %w", pv.Name, err))
	}
	return r.forget(ctx, pv)
}

// recycleStorage deletes the content of the storage and makes the volume available again.
func (r *Reclaimer) recycleStorage(ctx context.Context, pv *v1.PersistentVolume) error {
	pv, err := r.reclaimable(ctx, pv, objects.ReasonVolumeFailedRecycle)
	if err != nil || pv == nil {
		return err
	}
	if r.with.Storage.IsExternal(pv) {
		return r.abandon(ctx, pv)
	}
	if pv.DeletionTimestamp != nil {
		return r.with.Binder.Release(ctx, pv) // There is no next claim.
	}
	plugin, err := r.with.Plugins.FindRecyclablePluginBySpec(volume.NewSpecFromPersistentVolume(pv, false))
	if err != nil {
		return r.fail(ctx, pv, objects.ReasonVolumeFailedRecycle, fmt.Sprintf("nothing here can recycle it: %v", err))
	}
	if err := r.recycle(ctx, plugin, pv); err != nil {
		return r.callFailed(ctx, pv, objects.ReasonVolumeFailedRecycle, fmt.Errorf("volume %q is not recycled: %w", pv.Name, err))
	}
	r.with.Events.Eventf(pv, v1.EventTypeNormal, objects.ReasonVolumeRecycled, "nothing is left in the volume")
	return r.with.Binder.Unbind(ctx, pv)
}

// reclaimable returns the store's version of the volume if it is to be reclaimed now: its claim is gone, its policy is
// unchanged, and nothing uses it; otherwise nil. reason is the reason of the event about a user.
func (r *Reclaimer) reclaimable(ctx context.Context, pv *v1.PersistentVolume, reason string) (*v1.PersistentVolume, error) {
	if err := r.with.Queue.CheckBackoff(work.Item{Kind: work.Volume, Name: store.NameOf(pv)}, pv.UID); err != nil {
		return nil, err
	}
	pv, err := r.reverify(ctx, pv)
	if err != nil || pv == nil {
		return nil, err
	}
	used, err := r.with.Users.Volume(ctx, pv)
	if err != nil || used.By == "" {
		return pv, err
	}
	message := "its claim is gone, but " + used.By
	if pv.Status.Message == message {
		return nil, used.Err
	}
	if _, err := r.with.Binder.SetPhase(ctx, pv, v1.VolumeReleased, message); err != nil {
		return nil, err
	}
	r.with.Events.Eventf(pv, v1.EventTypeNormal, reason, "%s", message)
	return nil, used.Err
}

// reverify reads the volume from the store before its storage is destroyed. It returns nil if the volume must be left
// alone: it is gone or another one, its policy has changed, or its claim exists after all.
func (r *Reclaimer) reverify(ctx context.Context, pv *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	now, err := store.Get[*v1.PersistentVolume](ctx, r.with.Store, "", pv.Name)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("volume %q is not reclaimed: %w", pv.Name, err)
	case now.UID != pv.UID, now.Spec.ClaimRef == nil, now.Spec.ClaimRef.UID == "",
		now.Spec.PersistentVolumeReclaimPolicy != pv.Spec.PersistentVolumeReclaimPolicy:
		return nil, nil
	}
	claim, err := objects.ReadClaimOf(ctx, r.with.Store, now)
	switch {
	case err != nil:
		return nil, err
	case claim == nil:
		return now, nil
	}
	hasOther, err := objects.HasAnotherVolume(ctx, r.with.Store, claim, now)
	switch {
	case err != nil:
		return nil, err
	case hasOther && objects.IsDeletedWithClaim(now):
		return now, nil
	}
	return nil, work.AwaitChange(r.with.Claims, claim)
}

// recycle has the plugin empty the storage, and records its messages as events.
func (r *Reclaimer) recycle(ctx context.Context, plugin volume.RecyclableVolumePlugin, pv *v1.PersistentVolume) error {
	return r.with.Storage.Recycle(ctx, plugin, pv, func(eventType, message string) {
		r.with.Events.Eventf(pv, eventType, objects.ReasonVolumeRecycled, "%s", message)
	})
}

// callFailed records that a plugin failed to reclaim a volume. The reclaim is retried.
func (r *Reclaimer) callFailed(ctx context.Context, pv *v1.PersistentVolume, reason string, err error) error {
	failed := &work.CallError{UID: pv.UID, Err: err}
	if ctx.Err() != nil {
		return failed
	}
	if errors.Is(err, volume.ErrInUse) && reason == objects.ReasonVolumeFailedDelete {
		r.with.Events.Eventf(pv, v1.EventTypeNormal, objects.ReasonVolumeDelete, "%v; it will be tried again", err)
		return failed
	}
	r.with.Events.Eventf(pv, v1.EventTypeWarning, reason, "%v", err)
	if _, err := r.with.Binder.SetPhase(ctx, pv, v1.VolumeFailed, err.Error()); err != nil {
		failed.Err = errors.Join(failed.Err, err)
	}
	return failed
}

// forget deletes the object of a volume whose storage is gone.
func (r *Reclaimer) forget(ctx context.Context, pv *v1.PersistentVolume) error {
	if err := r.with.Binder.Release(ctx, pv); err != nil {
		return err
	}
	err := store.Delete(ctx, r.with.Store, pv)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("the storage of volume %q is gone, its object is not: %w", pv.Name, err)
	}
	return nil
}
