package snapshot

import (
	"context"
	"errors"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"

	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// syncDeleted releases a content that is being deleted: after its VolumeSnapshot is gone, and after the snapshot is deleted, unless the
// policy retains it.
func (c *contentSync) syncDeleted(ctx context.Context, item work.Item, content *snapshotv1.VolumeSnapshotContent) error {
	if !has(content, FinalizerContent) {
		return nil
	}
	bound, err := c.isHeld(ctx, content)
	if err != nil || bound {
		return err
	}
	mayExist := handleOf(content) != "" || isMarked(content, AnnBeingCreated)
	if mayExist && content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete && !isMember(content) {
		if err := c.queue.CheckBackoff(item, content.UID); err != nil {
			return err
		}
		if content, err = c.deleteSnapshot(ctx, content); errors.Is(err, store.ErrConflict) {
			return err
		} else if err != nil {
			return c.failures.fail(ctx, content, "SnapshotDeleteError", err)
		}
	}
	_, err = write(ctx, c.store, c.mirrors.contents, unchanged(content).release(FinalizerContent))
	return ignoreGone(err)
}

// isMember reports whether the snapshot of a content is deleted with its group.
func isMember(content *snapshotv1.VolumeSnapshotContent) bool {
	return content.Annotations[AnnGroupHandle] != "" || content.Status != nil && deref(content.Status.VolumeGroupSnapshotHandle) != ""
}

// isHeld reports whether the VolumeSnapshot of a content exists and does not release it yet. The mark that it does counts only
// while that VolumeSnapshot is being deleted: a content that was kept has the mark of an earlier one. It reads the store.
func (c *contentSync) isHeld(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) (bool, error) {
	ref := content.Spec.VolumeSnapshotRef
	if ref.UID == "" {
		return false, nil
	}
	snap, err := store.Get[*snapshotv1.VolumeSnapshot](ctx, c.store, ref.Namespace, ref.Name)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil || snap.UID != ref.UID {
		return false, err
	}
	if isBeingDeleted(snap) && isMarked(content, AnnBeingDeleted) {
		return false, nil
	}
	return true, work.AwaitChange(c.mirrors.snapshots, snap)
}

// deleteSnapshot has the plugin delete the snapshot of a content. If it may have made one whose handle is not known, it is asked to
// make it once more, which returns the handle.
func (c *contentSync) deleteSnapshot(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) (*snapshotv1.VolumeSnapshotContent, error) {
	if handleOf(content) == "" {
		found, err := c.findSnapshot(ctx, content)
		if err != nil {
			return content, err
		}
		content = found
	}
	if err := c.checkOnlyContent(ctx, content); err != nil {
		return content, err
	}
	plugin, err := c.plugins.mgr.FindSnapshottablePluginByName(c.plugins.served(content.Spec.Driver))
	if err != nil {
		return content, err
	}
	return content, c.plugins.delete(ctx, plugin, handleOf(content))
}

// findSnapshot writes the handle of a snapshot that a plugin may have made.
func (c *contentSync) findSnapshot(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) (*snapshotv1.VolumeSnapshotContent, error) {
	o, err := c.requestOf(ctx, content)
	var made volume.Snapshot
	if err == nil {
		made, err = c.plugins.create(ctx, o.source, o.name, o.parameters)
	}
	if err != nil {
		return nil, fmt.Errorf("the plugin was called to create snapshot %q, and it is not known whether it has: if there is none, or you have "+
			"deleted it, remove annotation %q of the content: %w", pluginSnapshotName(content.Spec.VolumeSnapshotRef.UID), AnnBeingCreated, err)
	}
	e := unchanged(content).begin()
	e.object.Status = contentStatus(made)
	return write(ctx, c.store, c.mirrors.contents, e)
}

// checkOnlyContent refuses to delete a snapshot that another content stands for. One that is about to delete the snapshot itself does
// not count: of two that are deleted, neither waits for the other. It reads the store.
func (c *contentSync) checkOnlyContent(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) error {
	all, _, err := store.ListOf[*snapshotv1.VolumeSnapshotContent](ctx, c.store, "")
	if err != nil {
		return err
	}
	for _, other := range all {
		if other.UID == content.UID || handleOf(other) != handleOf(content) || c.plugins.served(other.Spec.Driver) != c.plugins.served(content.Spec.Driver) {
			continue
		}
		deletes, err := c.deletes(ctx, other)
		if err != nil {
			return err
		}
		if !deletes {
			return fmt.Errorf("content %q has snapshot %q too: delete that content, or set the deletion policy of this one to Retain: %w",
				other.Name, handleOf(content), volume.ErrInUse)
		}
	}
	return nil
}

// deletes reports whether a content is being deleted, with its snapshot, and no VolumeSnapshot holds it. It reads the store.
func (c *contentSync) deletes(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) (bool, error) {
	if !isBeingDeleted(content) || content.Spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete || isMember(content) {
		return false, nil
	}
	held, err := c.isHeld(ctx, content)
	return !held, err
}
