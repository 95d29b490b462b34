package persistentvolume

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/bind"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/match"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/reclaim"
	"github.com/volumekit/volumekit/store"
)

// volumeSync syncs volumes: it updates their phases, offers free ones to claims, and reclaims those whose claims are
// gone.
type volumeSync struct {
	store     store.Store
	mirrors   *mirrors
	queue     *work.Queue
	matcher   *match.Matcher
	binder    *bind.Binder
	reclaimer *reclaim.Reclaimer

	populating *populating
}

// sync does the next step for one volume.
func (s *volumeSync) sync(ctx context.Context, name string) error {
	pv, ok := s.mirrors.volume(name)
	if !ok {
		s.populating.fillings.Cancel(name)
		return nil
	}
	ref := pv.Spec.ClaimRef
	switch {
	case pv.DeletionTimestamp != nil && (ref == nil || ref.UID == ""):
		return s.binder.Release(ctx, pv)
	case ref == nil && pv.Status.Phase == v1.VolumeAvailable && s.offer(pv):
		return nil // A write would only conflict with that of the claim.
	case ref == nil || ref.UID == "":
		pv, err := s.binder.SetPhase(ctx, pv, v1.VolumeAvailable, "")
		if err == nil && ref == nil {
			s.offer(pv)
		}
		return err
	}
	claimName := objects.ClaimNameOf(pv)
	claim, ok := s.mirrors.claims.Get(claimName)
	if ok && claim.UID == ref.UID && claim.Spec.VolumeName == pv.Name && !objects.IsUnfilled(pv) {
		_, err := s.binder.SetPhase(ctx, pv, v1.VolumeBound, "")
		return err
	}
	// All that follows may take the volume from a claim: read the store.
	claim, err := objects.ReadClaimOf(ctx, s.store, pv)
	switch {
	case err != nil:
		return err
	case claim == nil:
		return s.claimGone(ctx, pv, work.Item{Kind: work.Claim, Name: claimName})
	case claim.Spec.VolumeName == "", claim.Spec.VolumeName == pv.Name && objects.IsUnfilled(pv):
		s.queue.Add(work.Claim, store.NameOf(claim)) // to finish its bind, or to say why it cannot
		return work.AwaitChange(s.mirrors.claims, claim)
	case claim.Spec.VolumeName == pv.Name:
		if _, err := s.binder.SetPhase(ctx, pv, v1.VolumeBound, ""); err != nil {
			return err
		}
		return work.AwaitChange(s.mirrors.claims, claim)
	}
	return s.notNamed(ctx, pv, claim)
}

// claimGone reclaims a volume whose claim is gone. If a worker has the claim, it may just have found that out, and gives the volume
// back if the claim never had it: the volume waits for it.
func (s *volumeSync) claimGone(ctx context.Context, pv *v1.PersistentVolume, claim work.Item) error {
	if err := s.queue.AwaitSync(work.Item{Kind: work.Volume, Name: store.NameOf(pv)}, claim); err != nil {
		return err
	}
	return s.reclaim(ctx, pv)
}

// notNamed syncs a volume whose claim names another one. It takes the volume from the claim only if the claim has the other one:
// in a store that lets the name be changed, the claim may have had this volume, and be lost.
func (s *volumeSync) notNamed(ctx context.Context, pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) error {
	hasOther, err := objects.HasAnotherVolume(ctx, s.store, claim, pv)
	switch {
	case err != nil:
		return err
	case !hasOther:
		s.queue.AddLater(work.Item{Kind: work.Volume, Name: store.NameOf(pv)})
		return nil
	case objects.IsDeletedWithClaim(pv):
		return s.reclaim(ctx, pv)
	}
	return s.binder.Unbind(ctx, pv)
}

// reclaim reclaims a volume whose claim is gone, after its filling has ended.
func (s *volumeSync) reclaim(ctx context.Context, pv *v1.PersistentVolume) error {
	if err := s.populating.end(ctx, pv, pv, work.Volume); err != nil {
		return err
	}
	return s.reclaimer.Reclaim(ctx, pv)
}

// offer wakes the claim that should get a free volume, and reports whether the volume is reserved for a claim now.
func (s *volumeSync) offer(pv *v1.PersistentVolume) (isKept bool) {
	return s.matcher.Offer(pv, func(claim types.NamespacedName) (idle bool) {
		busy := s.queue.IsBusy(work.Item{Kind: work.Claim, Name: claim})
		s.queue.Add(work.Claim, claim)
		return !busy
	})
}
