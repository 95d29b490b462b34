package inuse

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/store"
)

// sharedWith returns the use of a volume's storage by another volume with the same storage, which may be bound, free or
// retained. A volume that is to be deleted with the storage, or emptied like it, does not use it.
func (t *Tracker) sharedWith(ctx context.Context, pv *v1.PersistentVolume) (Use, error) {
	for _, other := range t.with.VolumesWith.Get(objects.StorageOf(pv)) {
		if other.Name == pv.Name || !objects.MayShareStorage(pv, other) {
			continue
		}
		now, err := store.Get[*v1.PersistentVolume](ctx, t.with.Store, "", other.Name)
		switch {
		case errors.Is(err, store.ErrNotFound):
			continue
		case err != nil:
			return Use{}, fmt.Errorf("volume %q, which may have the storage of volume %q: %w", other.Name, pv.Name, err)
		}
		goes, err := t.goesToo(ctx, pv, now)
		if err != nil {
			return Use{}, err
		}
		if !goes {
			by := fmt.Sprintf("volume %q has the same storage: delete its object, or give this volume the policy Retain", now.Name)
			return Use{By: by, Err: work.AwaitChange(t.with.Volumes, now)}, nil
		}
	}
	return Use{}, nil
}

// goesToo reports whether the claim of the other volume is gone too, and its policy deletes the storage or is that of pv.
func (t *Tracker) goesToo(ctx context.Context, pv, other *v1.PersistentVolume) (bool, error) {
	policy := other.Spec.PersistentVolumeReclaimPolicy
	if other.Spec.ClaimRef == nil || other.Spec.ClaimRef.UID == "" ||
		policy != v1.PersistentVolumeReclaimDelete && policy != pv.Spec.PersistentVolumeReclaimPolicy {
		return false, nil
	}
	claim, err := objects.ReadClaimOf(ctx, t.with.Store, other)
	return err == nil && claim == nil, err
}
