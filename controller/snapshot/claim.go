package snapshot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
)

// claimLocks are the locks of claims whose protection a worker is about to change. Without them one worker may find that no snapshot reads
// a claim, another may begin a snapshot of the claim, which is still protected, and the first may then remove the protection. Make it with
// newClaimLocks. Its methods may be called from several goroutines at once.
type claimLocks struct {
	mu    sync.Mutex
	names map[types.NamespacedName]struct{}
}

func newClaimLocks() *claimLocks { return &claimLocks{names: map[types.NamespacedName]struct{}{}} }

// lock locks claims until release is called. If another worker has locked one of them, lock locks none, and the error matches
// store.ErrConflict.
func (t *claimLocks) lock(claims ...types.NamespacedName) (release func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range claims {
		if _, there := t.names[name]; there {
			return nil, fmt.Errorf("another worker checks whether claim %q is protected: %w", name, store.ErrConflict)
		}
	}
	for _, name := range claims {
		t.names[name] = struct{}{}
	}
	return func() { t.unlock(claims) }, nil
}

func (t *claimLocks) unlock(claims []types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range claims {
		delete(t.names, name)
	}
}

// protection protects claims from deletion while their volumes are read.
type protection struct {
	store   store.Store
	mirrors *mirrors
	locks   *claimLocks
}

// protectClaims protects claims at least until release is called, and then as long as a snapshot or a group reads them. It reads the
// store: the claims exist and are not being deleted.
func (c *protection) protectClaims(ctx context.Context, claims ...*v1.PersistentVolumeClaim) (release func(), err error) {
	names := make([]types.NamespacedName, len(claims))
	for i, claim := range claims {
		names[i] = store.NameOf(claim)
	}
	release, err = c.locks.lock(names...)
	if err != nil {
		return nil, err
	}
	for _, claim := range claims {
		if err := c.protectClaim(ctx, claim); err != nil {
			release()
			return nil, err
		}
	}
	return release, nil
}

func (c *protection) protectClaim(ctx context.Context, seen *v1.PersistentVolumeClaim) error {
	claim, err := store.Get[*v1.PersistentVolumeClaim](ctx, c.store, seen.Namespace, seen.Name)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if err != nil || claim.UID != seen.UID || isBeingDeleted(claim) || claim.Spec.VolumeName != seen.Spec.VolumeName {
		return fmt.Errorf("claim %q has changed: %w", store.NameOf(seen), store.ErrConflict)
	}
	_, err = write(ctx, c.store, c.mirrors.claims, unchanged(claim).protect(FinalizerSourceClaim))
	return err
}

// release removes the protection of a claim whose volume no snapshot, and no group, reads any more. It reads the store.
func (c *protection) release(ctx context.Context, name types.NamespacedName) error {
	claim, ok := c.mirrors.claims.Get(name)
	if !ok || !has(claim, FinalizerSourceClaim) {
		return nil
	}
	release, err := c.locks.lock(name)
	if err != nil {
		return err
	}
	defer release()
	snaps, _, err := store.ListOf[*snapshotv1.VolumeSnapshot](ctx, c.store, name.Namespace)
	if err != nil {
		return err
	}
	for _, snap := range snaps {
		if used, err := c.isRead(ctx, claim, snap); used || err != nil {
			return err
		}
	}
	if used, err := c.isReadByGroup(ctx, claim); used || err != nil {
		return err
	}
	_, err = write(ctx, c.store, c.mirrors.claims, unchanged(claim).release(FinalizerSourceClaim))
	return ignoreGone(err)
}

// isRead reports whether the volume of a claim may still be read for a snapshot. It reads the store.
func (c *protection) isRead(ctx context.Context, claim *v1.PersistentVolumeClaim, snap *snapshotv1.VolumeSnapshot) (bool, error) {
	from := snap.Spec.Source
	if deref(from.PersistentVolumeClaimName) != claim.Name || deref(from.VolumeSnapshotContentName) != "" || !isUnfinished(snap) {
		return false, nil
	}
	content, err := store.Get[*snapshotv1.VolumeSnapshotContent](ctx, c.store, "", contentNamed(snap))
	if errors.Is(err, store.ErrNotFound) {
		return boundTo(snap) == "" && !isBeingDeleted(snap) && !isBeingDeleted(claim), nil // Its content may be created any time.
	}
	if err != nil || !isBoundTo(content.Spec.VolumeSnapshotRef, snap) || isReady(content) {
		return false, err
	}
	return !isBeingDeleted(content) || isMarked(content, AnnBeingCreated), nil
}

// isReadByGroup reports whether the volume of a claim may still be read for a group. It reads the store.
func (c *protection) isReadByGroup(ctx context.Context, claim *v1.PersistentVolumeClaim) (bool, error) {
	groups, _, err := store.ListOf[*groupv1.VolumeGroupSnapshot](ctx, c.store, claim.Namespace)
	if err != nil {
		return false, err
	}
	contents, _, err := store.ListOf[*groupv1.VolumeGroupSnapshotContent](ctx, c.store, "")
	if err != nil {
		return false, err
	}
	for _, group := range groups {
		content := contentOfGroup(group, contents)
		switch {
		case content == nil:
			if maySelect(group, claim) {
				return true, nil
			}
		case isGroupReady(content) || isBeingDeleted(content) && !isMarked(content, AnnGroupBeingCreated):
		case slices.Contains(sourceVolumes(content), claim.Spec.VolumeName):
			return true, nil
		}
	}
	return false, nil
}

// maySelect reports whether a group without a content may get one that is made of the volume of claim.
func maySelect(group *groupv1.VolumeGroupSnapshot, claim *v1.PersistentVolumeClaim) bool {
	if group.Spec.Source.Selector == nil || groupBoundTo(group) != "" || isBeingDeleted(group) || isBeingDeleted(claim) {
		return false
	}
	selector, err := metav1.LabelSelectorAsSelector(group.Spec.Source.Selector)
	return err == nil && selector.Matches(labels.Set(claim.Labels))
}

func contentOfGroup(group *groupv1.VolumeGroupSnapshot, all []*groupv1.VolumeGroupSnapshotContent) *groupv1.VolumeGroupSnapshotContent {
	for _, content := range all {
		if isBoundTo(content.Spec.VolumeGroupSnapshotRef, group) {
			return content
		}
	}
	return nil
}
