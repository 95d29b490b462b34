package persistentvolume

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/bind"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/populate"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/storage"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

type (
	// Populator fills new volumes for claims whose data source is of one kind.
	Populator = populate.Populator
	// PopulateRequest is a request to a [Populator].
	PopulateRequest = populate.Request
	// PopulateProgress is the progress of a [Populator].
	PopulateProgress = populate.Progress
	// Filesystems mounts the new volumes that populators fill.
	Filesystems = populate.Filesystems
)

// populating has populators fill volumes for claims whose data source is of another kind than a claim or a snapshot.
type populating struct {
	store      store.Store
	queue      *work.Queue
	binder     *bind.Binder
	pending    *pendingClaims
	events     volume.EventRecorder
	populators map[schema.GroupKind]Populator
	fillings   *populate.Fillings
}

// populator returns the populator for a claim. It returns nil if the claim needs none, and nil with a reason if the
// claim must wait for one.
func (p *populating) populator(claim *v1.PersistentVolumeClaim) (Populator, *reason) {
	ref, err := storage.OfAnotherKind(claim)
	if err != nil {
		why := provisioningFailed(err)
		return nil, &why
	}
	if ref == nil {
		return nil, nil
	}
	kind := storage.KindOf(ref)
	populator := p.populators[kind]
	switch {
	case populator == nil:
		err := fmt.Errorf("the data source is %s, and no populator fills volumes for %s here: register one in Options.Populators: %w",
			storage.Describe(ref), kind, volume.ErrInfeasible)
		return nil, &reason{eventType: v1.EventTypeWarning, reason: ReasonUnrecognizedDataSourceKind, message: err.Error(), err: err}
	case !p.fillings.CanMount():
		why := provisioningFailed(fmt.Errorf("the data source is %s, and nothing mounts volumes for populators: give the controller "+
			"Options.Filesystems: %w", storage.Describe(ref), volume.ErrInfeasible))
		return nil, &why
	case claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == v1.PersistentVolumeBlock:
		why := provisioningFailed(fmt.Errorf("the data source is %s, and populators fill filesystems only: ask for volumeMode Filesystem: %w",
			storage.Describe(ref), volume.ErrInfeasible))
		return nil, &why
	}
	return populator, nil
}

// fill has a populator fill the volume of a claim, and returns the volume when it is full. It returns nil while the
// claim must wait.
func (p *populating) fill(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	if !objects.IsUnfilled(pv) {
		p.fillings.Forget(pv.Name)
		return pv, nil
	}
	switch result, known := p.fillings.Result(pv.Name, pv.UID); {
	case !known:
		return nil, p.begin(ctx, claim, pv)
	case result.Running:
		return nil, work.ErrAwaited
	case result.Err != nil:
		return nil, p.failed(ctx, claim, pv, result.Err)
	default:
		return p.markFull(ctx, claim, pv, result)
	}
}

// begin starts to fill a volume from the beginning. First it writes the id of this attempt to the volume: results of
// earlier attempts, of any process, no longer count.
func (p *populating) begin(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) error {
	populator, why := p.populator(claim)
	if why == nil {
		why = sourceChanged(claim, pv)
	}
	if why != nil {
		return p.pending.wait(ctx, claim, *why)
	}
	if err := p.queue.CheckBackoff(work.Item{Kind: work.Claim, Name: store.NameOf(claim)}, claim.UID); err != nil {
		return err
	}
	if err := p.pending.wait(ctx, claim, beingFilled(pv)); err != nil {
		return err
	}
	attempt := rand.Text()
	begun := pv.DeepCopy()
	metav1.SetMetaDataAnnotation(&begun.ObjectMeta, objects.AnnPopulating, attempt)
	begun, err := p.binder.UpdateVolume(ctx, begun)
	if err != nil {
		return err
	}
	p.fillings.Start(ctx, populate.Job{
		Attempt: attempt, Claim: claim, Volume: begun, Populator: populator, Kind: pv.Annotations[objects.AnnPopulate],
		Report: func(progress PopulateProgress) { p.progressed(claim, begun, progress) },
		Ended: func() {
			p.queue.Add(work.Claim, store.NameOf(claim))
			p.queue.Add(work.Volume, store.NameOf(begun))
		},
	})
	return work.ErrAwaited
}

// sourceChanged returns why a volume cannot be filled for a claim: it names another data source than at the creation of
// the volume.
func sourceChanged(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) *reason {
	now := "nothing"
	if ref, err := storage.OfAnotherKind(claim); err == nil && ref != nil {
		now = storage.Describe(ref)
	}
	made := pv.Annotations[objects.AnnPopulate]
	if now == made {
		return nil
	}
	return &reason{
		eventType: v1.EventTypeWarning, reason: ReasonPopulationFailed,
		message: fmt.Sprintf("volume %q was made to be filled from %s, and the claim names %s now: make the claim anew", pv.Name, made, now),
	}
}

// markFull marks the volume as full. The content was synced and unmounted before. The mark is written only if no other
// attempt has begun since.
func (p *populating) markFull(
	ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, result populate.Result,
) (*v1.PersistentVolume, error) {
	now, err := store.Get[*v1.PersistentVolume](ctx, p.store, "", pv.Name)
	switch {
	case errors.Is(err, store.ErrNotFound):
		p.fillings.Forget(pv.Name)
		return nil, fmt.Errorf("volume %q was filled, and its object is gone: %w", pv.Name, store.ErrConflict)
	case err != nil:
		return nil, err
	case now.UID != pv.UID, !objects.OwnedBy(now, claim), now.Annotations[objects.AnnPopulating] != result.Attempt:
		return nil, p.failed(ctx, claim, pv, fmt.Errorf("another controller has begun to fill volume %q: run one of them, or use "+
			"controller/leader: %w", pv.Name, store.ErrConflict))
	}
	full := now
	if objects.IsUnfilled(now) {
		full = now.DeepCopy()
		metav1.SetMetaDataAnnotation(&full.ObjectMeta, objects.AnnPopulated, result.Digest)
		if full, err = p.binder.UpdateVolume(ctx, full); err != nil {
			return nil, err
		}
	}
	p.fillings.Forget(pv.Name)
	p.events.Eventf(claim, v1.EventTypeNormal, objects.ReasonPopulationSucceeded, "volume %q is full: %s", pv.Name, result.Digest)
	return full, nil
}

// failed records a failed filling, which is retried after a back-off.
func (p *populating) failed(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, err error) error {
	p.fillings.Forget(pv.Name)
	err = fmt.Errorf("volume %q is not filled: %w", pv.Name, err)
	failed := &work.CallError{UID: claim.UID, Err: fmt.Errorf("claim %q: %w", store.NameOf(claim), err)}
	if ctx.Err() != nil {
		return failed
	}
	why := reason{eventType: v1.EventTypeWarning, reason: ReasonPopulationFailed, message: err.Error(), err: err}
	if err := p.pending.wait(ctx, claim, why); err != nil {
		failed.Err = errors.Join(failed.Err, err)
	}
	return failed
}

// progressed reports the progress of a filling: as the reason why the claim waits, and as an event.
func (p *populating) progressed(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, progress PopulateProgress) {
	why := beingFilled(pv)
	if progress.Total > 0 {
		why.message += fmt.Sprintf(": %d of %d bytes (%d %%)", progress.Done, progress.Total, int64(100*float64(progress.Done)/float64(progress.Total)))
	} else {
		why.message += fmt.Sprintf(": %d bytes", progress.Done)
	}
	if p.pending.set(claim, why) {
		p.pending.record(claim, why)
	}
}

func beingFilled(pv *v1.PersistentVolume) reason {
	return reason{
		eventType: v1.EventTypeNormal, reason: ReasonPopulating,
		message: fmt.Sprintf("volume %q is being filled from %s", pv.Name, pv.Annotations[objects.AnnPopulate]),
	}
}

// end cancels the filling of a volume whose claim is gone or being deleted. It returns nil when nothing fills the
// volume and the volume is unmounted. Otherwise claim and volume are synced again, and an event on waits, the claim or
// the volume, has the reason.
func (p *populating) end(ctx context.Context, pv *v1.PersistentVolume, waits store.Object, kind work.Kind) error {
	if p.fillings.Cancel(pv.Name) {
		return work.ErrAwaited
	}
	if !objects.IsUnfilled(pv) {
		return nil
	}
	if err := p.queue.CheckBackoff(work.Item{Kind: kind, Name: store.NameOf(waits)}, waits.GetUID()); err != nil {
		return err
	}
	if err := p.fillings.Release(ctx, pv); err != nil {
		p.events.Eventf(waits, v1.EventTypeWarning, ReasonPopulationFailed, "%v", err)
		return &work.CallError{UID: waits.GetUID(), Err: err}
	}
	return nil
}

// endOf cancels the filling of a claim's provisioned volume, whose object is pv; nil if that is gone.
func (p *populating) endOf(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) error {
	if p.fillings.Cancel(objects.ProvisionedName(claim)) {
		return work.ErrAwaited
	}
	if pv == nil {
		return nil
	}
	return p.end(ctx, pv, claim, work.Claim)
}
