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
	"github.com/volumekit/volumekit/volume"
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
	return t.usedBySharers(ctx, item, pv, sharers)
}

// sharedSince is sharedWith for the volumes that events have reported since the list of volumes was read. It is the last check before
// the storage goes.
func (t *Tracker) sharedSince(ctx context.Context, item work.Item, pv *v1.PersistentVolume) (Use, error) {
	l := sharersOf{pv.UID, objects.StorageOf(pv)}
	listed, _ := t.sharers.answer(item, l)
	isListed := func(other *v1.PersistentVolume) bool {
		return slices.ContainsFunc(listed, func(l *v1.PersistentVolume) bool { return l.Name == other.Name && l.UID == other.UID })
	}
	return t.usedBySharers(ctx, item, pv, slices.DeleteFunc(slices.Clone(t.with.VolumesIn.Get(l.storage)), isListed))
}

// usedBySharers returns the use of a volume's storage by one of those volumes.
func (t *Tracker) usedBySharers(ctx context.Context, item work.Item, pv *v1.PersistentVolume, sharers []*v1.PersistentVolume) (Use, error) {
	for _, other := range sharers {
		if other.Name == pv.Name || !objects.MayContainStorageOf(pv, other) {
			continue
		}
		use, err := t.usesStorageOf(ctx, item, pv, other.Name)
		if err != nil {
			return Use{}, fmt.Errorf("volume %q, which may have the storage of volume %q: %w", other.Name, pv.Name, err)
		}
		if use.By != "" {
			return use, nil
		}
	}
	return Use{}, nil
}

// usesStorageOf returns the use of pv's storage by another volume in the store, or by what uses that volume. A volume that
// goes together with pv does not use it.
func (t *Tracker) usesStorageOf(ctx context.Context, item work.Item, pv *v1.PersistentVolume, name string) (Use, error) {
	other, err := store.Get[*v1.PersistentVolume](ctx, t.with.Store, "", name)
	if errors.Is(err, store.ErrNotFound) {
		return Use{}, nil
	}
	if err != nil {
		return Use{}, err
	}
	goes, err := t.goesToo(ctx, pv, other)
	if err != nil {
		return Use{}, err
	}
	if !goes {
		by := fmt.Sprintf("volume %q has the same storage, or a part of it: delete its object, or give this volume the policy Retain", name)
		return Use{By: by, Err: work.AwaitChange(t.with.Volumes, other)}, nil
	}
	by, err := t.userOf(ctx, item, other)
	if err != nil || by == "" {
		return Use{}, err
	}
	t.with.Queue.AddLater(item) // No event of that user queues the item.
	return Use{By: fmt.Sprintf("volume %q has the same storage, or a part of it, and %s", name, by)}, nil
}

// goesToo reports whether the claim of the other volume is gone too, and its policy deletes its storage, or empties it as
// that of pv does. A directory that is emptied must not go with the one above it: another claim gets it.
func (t *Tracker) goesToo(ctx context.Context, pv, other *v1.PersistentVolume) (bool, error) {
	if other.Spec.ClaimRef == nil || other.Spec.ClaimRef.UID == "" {
		return false, nil
	}
	policy := other.Spec.PersistentVolumeReclaimPolicy
	isLikewise := policy == pv.Spec.PersistentVolumeReclaimPolicy && objects.StorageOf(other) == objects.StorageOf(pv)
	if policy != v1.PersistentVolumeReclaimDelete && !isLikewise {
		return false, nil
	}
	claim, err := objects.ReadClaimOf(ctx, t.with.Store, other)
	return err == nil && claim == nil, err
}

// userOf describes what uses, or may use, a volume whose claim is gone, or returns "". It reads the store.
func (t *Tracker) userOf(ctx context.Context, item work.Item, pv *v1.PersistentVolume) (string, error) {
	at, err := t.attachmentOf(ctx, pv)
	if err != nil {
		return "", err
	}
	if at != nil {
		return attachedTo(at), nil
	}
	name := objects.ClaimNameOf(pv)
	pods, err := t.allPods.all(ctx, name.Namespace)
	if err != nil {
		return "", fmt.Errorf("the pods of namespace %q: %w", name.Namespace, err)
	}
	for _, pod := range pods {
		if slices.Contains(volume.ClaimsOfPod(pod), name) && t.mayUseVolumeOf(name)(pod) {
			return t.usedByPod(pod), nil
		}
	}
	if node, err := t.reportedBy(ctx, item, pv); err != nil || node != "" {
		return node, err
	}
	return t.mountedBy(ctx, item, pv), nil
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
