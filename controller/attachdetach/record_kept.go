package attachdetach

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
)

// This file records intents. An intent to attach is recorded with the proof that the volume is not being reclaimed.

// recordIntent records an intent. Before an attach there is usually no record, so recordIntent creates one without reading first.
func (r *attachmentRecords) recordIntent(ctx context.Context, intent operationexecutor.Intent) (*storagev1.VolumeAttachment, error) {
	if intent.Kind != operationexecutor.OpAttach {
		return r.object(ctx, intent)
	}
	if _, known := r.known(attachment{intent.VolumeName, intent.NodeName}); !known {
		made, err := r.makeWhileKept(ctx, intent)
		if made != nil || err != nil {
			return made, err
		}
	}
	object, err := r.object(ctx, intent)
	if err != nil || object.Status.Attached {
		return object, err
	}
	return object, r.checkKept(ctx, intent)
}

// makeWhileKept does what object and checkKept do in one transaction: the record is made if the volume is what was last seen of it.
// It returns nil when nothing was made: a record is there, the volume has changed, or the store has no transactions.
func (r *attachmentRecords) makeWhileKept(ctx context.Context, intent operationexecutor.Intent) (*storagev1.VolumeAttachment, error) {
	together, ok := r.store.(store.Transactor)
	if !ok || intent.Spec == nil || intent.Spec.PersistentVolume == nil {
		return nil, nil
	}
	pv := intent.Spec.PersistentVolume
	if pv.ResourceVersion == "" || isReclaimed(pv) {
		return nil, nil
	}
	made, err := r.make(intent, func(object *storagev1.VolumeAttachment) (*storagev1.VolumeAttachment, error) {
		written, err := together.Commit(ctx, store.Transaction{
			Conditions: []store.ObjectCondition{{
				Key: store.Key{Kind: store.PersistentVolumes, Name: pv.Name}, Preconditions: store.Preconditions{ResourceVersion: pv.ResourceVersion},
			}},
			Writes: []store.Write{store.ToCreate(object)},
		})
		if err != nil {
			return nil, err
		}
		made, ok := written[0].(*storagev1.VolumeAttachment)
		if !ok {
			return nil, fmt.Errorf("the store returned %T for VolumeAttachment %q: %w", written[0], object.Name, store.ErrInvalid)
		}
		return made, nil
	})
	if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrAlreadyExists) {
		return nil, nil
	}
	return made, err
}

// checkKept refuses to attach a volume that is about to be reclaimed. Who reclaims one writes that before looking for attachments, and
// who attaches one writes the attachment before looking for that: so one of them sees the other, however old what is known is.
func (r *attachmentRecords) checkKept(ctx context.Context, intent operationexecutor.Intent) error {
	if intent.Spec == nil || intent.Spec.PersistentVolume == nil {
		return nil
	}
	wanted := intent.Spec.PersistentVolume
	now, err := store.Get[*v1.PersistentVolume](ctx, r.store, "", wanted.Name)
	switch {
	case err != nil:
		return &unsureError{fmt.Errorf("whether volume %q is kept is not known: %w", wanted.Name, err)}
	case isReclaimed(now), !sameClaim(now, wanted):
		return &unsureError{fmt.Errorf("volume %q is %s and no longer of the claim for which it was to be attached: %w",
			wanted.Name, now.Status.Phase, store.ErrConflict)}
	}
	return nil
}

// isReclaimed reports whether a volume waits to be reclaimed, or is being reclaimed.
func isReclaimed(pv *v1.PersistentVolume) bool {
	return pv.Status.Phase == v1.VolumeReleased || pv.Status.Phase == v1.VolumeFailed
}

func sameClaim(a, b *v1.PersistentVolume) bool {
	if a.Spec.ClaimRef == nil || b.Spec.ClaimRef == nil {
		return a.Spec.ClaimRef == b.Spec.ClaimRef
	}
	return a.Spec.ClaimRef.UID == b.Spec.ClaimRef.UID
}
