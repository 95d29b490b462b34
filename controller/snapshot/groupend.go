package snapshot

import (
	"context"
	"errors"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"

	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/store"
)

// syncDeleted releases a group that is being deleted: after its VolumeSnapshots are gone, and after its content is gone, unless the policy
// retains it.
func (c *groupSync) syncDeleted(ctx context.Context, group *groupv1.VolumeGroupSnapshot) error {
	if !has(group, FinalizerGroup) {
		return nil
	}
	left, err := c.deleteMembers(ctx, group)
	if err != nil || left {
		return err
	}
	content, err := store.Get[*groupv1.VolumeGroupSnapshotContent](ctx, c.store, "", groupContentNamed(group))
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if err == nil && isBoundTo(content.Spec.VolumeGroupSnapshotRef, group) {
		kept, err := c.releaseContent(ctx, group, content)
		if err != nil || !kept {
			return err
		}
	}
	_, err = write(ctx, c.store, c.mirrors.groups, unchanged(group).release(FinalizerGroup))
	return ignoreGone(err)
}

// releaseContent deletes the content of a group that is being deleted, unless it is to be kept, and reports whether it is kept.
func (c *groupSync) releaseContent(
	ctx context.Context, group *groupv1.VolumeGroupSnapshot, content *groupv1.VolumeGroupSnapshotContent,
) (kept bool, err error) {
	content, err = write(ctx, c.store, c.mirrors.groupContents, unchanged(content).mark(AnnGroupBeingDeleted))
	if err != nil {
		return false, err
	}
	if content.Spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete {
		if isMarked(content, AnnGroupBeingCreated) {
			// The plugin may have made it. The call is repeated for its handles, and until then the group keeps its sources.
			return false, work.AwaitChange(c.mirrors.groupContents, content)
		}
		return true, nil
	}
	if err := c.deleteUnbound(ctx, group, content); err != nil {
		return false, err
	}
	if !isBeingDeleted(content) {
		if err := ignoreGone(store.Delete(ctx, c.store, content)); err != nil {
			return false, err
		}
	}
	return false, work.AwaitChange(c.mirrors.groupContents, content)
}

// deleteMembers deletes the VolumeSnapshots of a group, and reports whether any is left. No member is removed while a claim is restored
// from one of them. It reads the store.
func (c *groupSync) deleteMembers(ctx context.Context, group *groupv1.VolumeGroupSnapshot) (left bool, err error) {
	snaps, _, err := store.ListOf[*snapshotv1.VolumeSnapshot](ctx, c.store, group.Namespace)
	if err != nil {
		return false, err
	}
	for _, snap := range snaps {
		if groupOwner(snap).UID != group.UID {
			continue
		}
		left = true
		if isBeingDeleted(snap) {
			continue
		}
		if err := ignoreGone(store.Delete(ctx, c.store, snap)); err != nil {
			return false, err
		}
	}
	return left, nil
}

// deleteUnbound deletes the contents of snapshots of a group whose VolumeSnapshots were never created.
func (c *groupSync) deleteUnbound(ctx context.Context, group *groupv1.VolumeGroupSnapshot, of *groupv1.VolumeGroupSnapshotContent) error {
	if of.Status == nil || deref(of.Status.VolumeGroupSnapshotHandle) == "" {
		return nil
	}
	for _, info := range of.Status.VolumeSnapshotInfoList {
		wanted, _ := newMember(group, of, info)
		content, err := store.Get[*snapshotv1.VolumeSnapshotContent](ctx, c.store, "", wanted.Name)
		if errors.Is(err, store.ErrNotFound) || err == nil && (isBeingDeleted(content) || content.Spec.VolumeSnapshotRef.UID != "") {
			continue
		}
		if err == nil {
			err = ignoreGone(store.Delete(ctx, c.store, content))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
