package snapshot

import (
	"context"
	"errors"
	"fmt"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/store"
)

// syncDeleted releases a snapshot that is being deleted: after its group, after the claims that are restored from it, and after its
// content, unless that is to be kept.
func (c *snapshotSync) syncDeleted(ctx context.Context, snap *snapshotv1.VolumeSnapshot) error {
	if !has(snap, FinalizerBound) && !has(snap, FinalizerAsSource) && !has(snap, FinalizerInGroup) {
		return nil
	}
	used, err := c.userOf(ctx, snap)
	if err != nil {
		return err
	}
	if used.by != nil {
		c.events.record(snap, v1.EventTypeWarning, "SnapshotDeletePending", used.by)
		return used.then
	}
	content, err := store.Get[*snapshotv1.VolumeSnapshotContent](ctx, c.store, "", contentNamed(snap))
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if err == nil && isBoundTo(content.Spec.VolumeSnapshotRef, snap) {
		kept, err := c.releaseContent(ctx, content)
		if err != nil || !kept {
			return err
		}
	}
	_, err = write(ctx, c.store, c.mirrors.snapshots, unchanged(snap).release(FinalizerBound, FinalizerAsSource, FinalizerInGroup))
	return ignoreGone(err)
}

// releaseContent deletes the content of a snapshot that is being deleted, unless it is to be kept, and reports whether it is kept.
func (c *snapshotSync) releaseContent(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) (kept bool, err error) {
	content, err = write(ctx, c.store, c.mirrors.contents, unchanged(content).mark(AnnBeingDeleted))
	if err != nil {
		return false, err
	}
	if content.Spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete {
		if isMarked(content, AnnBeingCreated) {
			// The plugin may have made it. The call is repeated for its handle, and until then the VolumeSnapshot keeps its source.
			return false, work.AwaitChange(c.mirrors.contents, content)
		}
		return true, nil
	}
	if !isBeingDeleted(content) {
		err := store.Delete(ctx, c.store, content)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return false, err
		}
	}
	return false, work.AwaitChange(c.mirrors.contents, content)
}

// use says why a snapshot that is being deleted has to stay. Its zero value says that nothing uses it.
type use struct {
	by   error
	then error // the result of the sync: nil if an event will report the end of the use
}

// userOf returns whether a snapshot that is being deleted is that of a group, or a claim is restored from it. It reads the store.
func (c *snapshotSync) userOf(ctx context.Context, snap *snapshotv1.VolumeSnapshot) (use, error) {
	if owner := groupOwner(snap); owner.Name != "" && has(snap, FinalizerInGroup) {
		group, err := store.Get[*groupv1.VolumeGroupSnapshot](ctx, c.store, snap.Namespace, owner.Name)
		if err == nil && group.UID == owner.UID && !isBeingDeleted(group) {
			return use{fmt.Errorf("the snapshot is one of group %q: delete the group", owner.Name), work.AwaitChange(c.mirrors.groups, group)}, nil
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return use{}, err
		}
	}
	claims, _, err := store.ListOf[*v1.PersistentVolumeClaim](ctx, c.store, snap.Namespace)
	for _, claim := range claims {
		if c.mayBeRestored(claim, snap.Name) {
			return use{
				fmt.Errorf("claim %q is restored from the snapshot, or may be: the snapshot stays until that is over", claim.Name),
				work.AwaitChange(c.mirrors.claims, claim),
			}, nil
		}
	}
	return use{}, err
}

// mayBeRestored reports whether a volume for claim may have been begun from the VolumeSnapshot of that name. A program that
// provisions for a driver without a plugin here leaves no sign of it on the claim.
func (c *snapshotSync) mayBeRestored(claim *v1.PersistentVolumeClaim, name string) bool {
	if claim.Spec.VolumeName != "" || snapshotNamed(claim) != name {
		return false
	}
	other := claim.Annotations[objects.AnnStorageProvisioner]
	return has(claim, objects.FinalizerProvisioning) || other != "" && c.sources.plugins.served(other) == ""
}

func ignoreGone(err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}
