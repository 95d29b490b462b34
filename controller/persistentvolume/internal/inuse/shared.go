package inuse

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/store"
)

// sharersOf looks up the volumes whose storage is this one, or in it, for the item's volume of that UID.
type sharersOf struct {
	uid     types.UID
	storage string // objects.StorageOf
}

// sharedWith returns the use of a volume's storage by another volume that has the same storage, or a directory in it. The
// other volume may be bound, free or retained. If it goes too, it does not use the storage. Only the store has every such
// volume: until it was read, the error is [work.ErrAwaited], and the item is queued again with the answer.
func (t *Tracker) sharedWith(ctx context.Context, item work.Item, pv *v1.PersistentVolume) (Use, error) {
	l := sharersOf{pv.UID, objects.StorageOf(pv)}
	sharers, answered := t.sharers.answer(item, l)
	if !answered {
		t.sharers.add("", item, l)
		t.with.Queue.Add(work.Volumes, types.NamespacedName{})
		return Use{}, work.ErrAwaited
	}
	for _, other := range sharers {
		if other.Name == pv.Name || !objects.MayContainStorageOf(pv, other) {
			continue
		}
		uses, err := t.usesStorageOf(ctx, pv, other.Name)
		if err != nil {
			return Use{}, fmt.Errorf("volume %q, which may have the storage of volume %q: %w", other.Name, pv.Name, err)
		}
		if uses {
			by := fmt.Sprintf("volume %q has the same storage, or a part of it: delete its object, or give this volume the policy Retain",
				other.Name)
			return Use{By: by, Err: work.AwaitChange(t.with.Volumes, other)}, nil
		}
	}
	return Use{}, nil
}

// usesStorageOf reports whether another volume is in the store, and does not go together with pv: its claim must be gone
// too, and its policy delete the storage, or empty it as that of pv does. A directory that is emptied must not go with the
// one above it: another claim gets it.
func (t *Tracker) usesStorageOf(ctx context.Context, pv *v1.PersistentVolume, name string) (bool, error) {
	other, err := store.Get[*v1.PersistentVolume](ctx, t.with.Store, "", name)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	policy := other.Spec.PersistentVolumeReclaimPolicy
	isLikewise := policy == pv.Spec.PersistentVolumeReclaimPolicy && objects.StorageOf(other) == objects.StorageOf(pv)
	if other.Spec.ClaimRef == nil || other.Spec.ClaimRef.UID == "" || policy != v1.PersistentVolumeReclaimDelete && !isLikewise {
		return true, nil
	}
	claim, err := objects.ReadClaimOf(ctx, t.with.Store, other)
	return claim != nil, err
}

// ReadVolumes reads the volumes from the store, for all items that wait for them, and queues these items.
func (t *Tracker) ReadVolumes(ctx context.Context) error {
	waiting := t.sharers.begin("")
	if len(waiting) == 0 {
		return nil
	}
	volumes, _, err := store.ListOf[*v1.PersistentVolume](ctx, t.with.Store, "")
	if err != nil {
		t.sharers.addAll("", waiting)
		return fmt.Errorf("the volumes that may have the storage of volumes that are to go: %w", err)
	}
	in := map[string][]*v1.PersistentVolume{}
	for _, pv := range volumes {
		for _, storage := range objects.StoragesAround(pv) {
			in[storage] = append(in[storage], pv)
		}
	}
	for _, item := range slices.SortedFunc(maps.Keys(waiting), work.Compare) {
		l := waiting[item]
		t.sharers.keep(item, l, in[l.storage])
		t.with.Queue.Add(item.Kind, item.Name)
	}
	return nil
}
