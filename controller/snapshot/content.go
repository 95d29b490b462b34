package snapshot

import (
	"context"
	"errors"
	"fmt"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// syncContent does the next thing for one content.
func (c *Controller) syncContent(ctx context.Context, item work.Item) error {
	content, ok := c.seen.contents.Get(item.Name)
	if !ok {
		return nil
	}
	if c.plugins.served(content.Spec.Driver) == "" {
		return nil // The program that serves the driver does it.
	}
	if dies(content) {
		return c.contentDies(ctx, item, content)
	}
	if (content.Spec.Source.VolumeHandle == nil) == (content.Spec.Source.SnapshotHandle == nil) {
		return c.contentFailed(ctx, content, "ContentValidationError", fmt.Errorf(
			"name either a volumeHandle or a snapshotHandle as the source of the content, and not both: %w", volume.ErrInvalid))
	}
	content, err := write(ctx, c.store, c.seen.contents, unchanged(content).protect(FinalizerContent))
	switch {
	case err != nil:
		return err
	case isReady(content):
		_, err := write(ctx, c.store, c.seen.contents, unchanged(content).unmark(AnnBeingCreated))
		return err
	}
	if err := c.queue.CheckBackoff(item, content.UID); err != nil {
		return err
	}
	if handleOf(content) == "" {
		return c.makeSnapshot(ctx, content)
	}
	return c.lookAtSnapshot(ctx, content)
}

// contentFailed writes why a content has no snapshot that can be used. It is tried again after a back-off.
func (c *Controller) contentFailed(ctx context.Context, content *snapshotv1.VolumeSnapshotContent, reason string, why error) error {
	failed := &work.CallError{UID: content.UID, Err: fmt.Errorf("content %q: %w", content.Name, why)}
	if ctx.Err() != nil {
		return failed
	}
	status := snapshotv1.VolumeSnapshotContentStatus{}
	if content.Status != nil {
		status = *content.Status.DeepCopy()
	}
	status.ReadyToUse = new(false)
	status.Error = newError(status.Error, why.Error())
	if apiequality.Semantic.DeepEqual(content.Status, &status) {
		return failed
	}
	e := unchanged(content).begin()
	e.object.Status = &status
	if _, err := write(ctx, c.store, c.seen.contents, e); err != nil {
		failed.Err = errors.Join(failed.Err, err)
		return failed
	}
	c.event(content, v1.EventTypeWarning, reason, why)
	return failed
}

// order is what the plugin is told to make the snapshot of a content with.
type order struct {
	source     source
	name       string
	parameters map[string]string
}

// orderOf returns what the plugin is told for a content that is made of a volume. It reads the store.
func (c *Controller) orderOf(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) (order, error) {
	uid := content.Spec.VolumeSnapshotRef.UID
	if content.Spec.Source.VolumeHandle == nil || content.Name != contentName(uid) {
		return order{}, fmt.Errorf("the content is none that was made for a VolumeSnapshot: name the snapshot by its snapshotHandle: %w", volume.ErrInvalid)
	}
	names := splitNames(content.Annotations[AnnSourceVolumes])
	if len(names) != 1 {
		return order{}, fmt.Errorf("annotation %q does not name the PersistentVolume of volume %q: put it back, or delete the VolumeSnapshot",
			AnnSourceVolumes, *content.Spec.Source.VolumeHandle)
	}
	from, err := c.sourceNamed(ctx, names[0], *content.Spec.Source.VolumeHandle)
	if err != nil {
		return order{}, err
	}
	if name := from.plugin.GetPluginName(); !volume.IsDriverOfPlugin(content.Spec.Driver, name) {
		return order{}, fmt.Errorf("volume %q is one of plugin %q, and the content is for driver %q: %w",
			names[0], name, content.Spec.Driver, volume.ErrInvalid)
	}
	made := order{source: from, name: pluginSnapshotName(uid)}
	if name := deref(content.Spec.VolumeSnapshotClassName); name != "" {
		class, err := store.Get[*snapshotv1.VolumeSnapshotClass](ctx, c.store, "", name)
		if err != nil {
			return order{}, volume.Transient(fmt.Errorf("snapshot class %q, whose parameters the plugin needs: %w", name, err))
		}
		made.parameters = class.Parameters
	}
	return made, nil
}

// sourceNamed returns the volume of a PersistentVolume, which must still be the one that the plugin names so.
func (c *Controller) sourceNamed(ctx context.Context, name, handle string) (source, error) {
	pv, err := store.Get[*v1.PersistentVolume](ctx, c.store, "", name)
	if err != nil {
		return source{}, volume.Transient(fmt.Errorf("volume %q, of which the snapshot is to be made: %w", name, err))
	}
	from, err := c.plugins.sourceOf(pv)
	if err != nil {
		return source{}, err
	}
	if from.handle != handle {
		return source{}, fmt.Errorf("volume %q is %q and no longer %q: another PersistentVolume has its name: %w",
			name, from.handle, handle, volume.ErrInvalid)
	}
	return from, nil
}

func splitNames(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}

// makeSnapshot has the plugin make the snapshot of a content. The content says so before it is called.
func (c *Controller) makeSnapshot(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) error {
	begun := isMarked(content, AnnBeingCreated)
	if !begun {
		wanted, err := c.isWanted(ctx, content)
		if err != nil || !wanted {
			return err
		}
	}
	o, err := c.orderOf(ctx, content)
	if err != nil {
		return c.contentFailed(ctx, content, "SnapshotCreationFailed", err)
	}
	content, err = write(ctx, c.store, c.seen.contents, unchanged(content).mark(AnnBeingCreated))
	if err != nil {
		return err
	}
	made, err := c.plugins.create(ctx, o.source, o.name, o.parameters)
	if err == nil {
		return c.recordSnapshot(ctx, content, made)
	}
	if ctx.Err() == nil && !begun && outcome.ClassOf(err) != outcome.Uncertain {
		unmarked, unmarkErr := write(ctx, c.store, c.seen.contents, unchanged(content).unmark(AnnBeingCreated))
		if unmarkErr != nil {
			return errors.Join(&work.CallError{UID: content.UID, Err: err}, unmarkErr)
		}
		content = unmarked
	}
	return c.contentFailed(ctx, content, "SnapshotCreationFailed", err)
}

// isWanted reports whether the snapshot of a content for which nothing was begun is still to be made. It reads the store.
func (c *Controller) isWanted(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) (bool, error) {
	ref := content.Spec.VolumeSnapshotRef
	snap, err := store.Get[*snapshotv1.VolumeSnapshot](ctx, c.store, ref.Namespace, ref.Name)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	return err == nil && isBoundTo(ref, snap) && contentNamed(snap) == content.Name && !dies(snap), err
}

func isMarked(obj store.Object, key string) bool {
	_, marked := obj.GetAnnotations()[key]
	return marked
}

// lookAtSnapshot asks the plugin whether a snapshot is ready to use.
func (c *Controller) lookAtSnapshot(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) error {
	plugin, err := c.plugins.mgr.FindSnapshottablePluginByName(c.plugins.served(content.Spec.Driver))
	if err != nil {
		return c.contentFailed(ctx, content, "SnapshotContentCheckandUpdateFailed", err)
	}
	found, err := c.plugins.get(ctx, plugin, handleOf(content))
	switch {
	case errors.Is(err, volume.ErrUnsupported) && content.Spec.Source.SnapshotHandle != nil:
		// Nothing can tell: what its maker says is believed.
		found, err = volume.Snapshot{Handle: handleOf(content), ReadyToUse: true}, nil
	case errors.Is(err, volume.ErrUnsupported):
		var o order
		if o, err = c.orderOf(ctx, content); err == nil {
			found, err = c.plugins.create(ctx, o.source, o.name, o.parameters)
		}
	}
	if err == nil && found.Handle != handleOf(content) {
		err = fmt.Errorf("snapshot %q is now %q: %w", handleOf(content), found.Handle, volume.ErrInvalid)
	}
	if err != nil {
		return c.contentFailed(ctx, content, "SnapshotContentCheckandUpdateFailed", err)
	}
	return c.recordSnapshot(ctx, content, found)
}

// recordSnapshot writes what the plugin says of the snapshot into the status of its content. Only then does the mark of a call go.
func (c *Controller) recordSnapshot(ctx context.Context, content *snapshotv1.VolumeSnapshotContent, found volume.Snapshot) error {
	status := contentStatus(found)
	if group := content.Annotations[AnnGroupHandle]; group != "" {
		status.VolumeGroupSnapshotHandle = &group
	}
	if !apiequality.Semantic.DeepEqual(content.Status, status) {
		e := unchanged(content).begin()
		e.object.Status = status
		var err error
		if content, err = write(ctx, c.store, c.seen.contents, e); err != nil {
			return err
		}
	}
	if _, err := write(ctx, c.store, c.seen.contents, unchanged(content).unmark(AnnBeingCreated)); err != nil {
		return err
	}
	if !found.ReadyToUse {
		return &work.CallError{UID: content.UID, Err: fmt.Errorf("content %q: %w", content.Name, errNotReady)}
	}
	return nil
}

func contentStatus(found volume.Snapshot) *snapshotv1.VolumeSnapshotContentStatus {
	status := &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: &found.Handle, ReadyToUse: &found.ReadyToUse}
	if !found.CreationTime.IsZero() {
		status.CreationTime = new(found.CreationTime.UnixNano())
	}
	if found.RestoreSize > 0 {
		status.RestoreSize = &found.RestoreSize
	}
	if found.GroupHandle != "" {
		status.VolumeGroupSnapshotHandle = &found.GroupHandle
	}
	return status
}

// contentDies lets a content go that is being deleted: after its VolumeSnapshot, and after the snapshot, unless that is to be kept.
func (c *Controller) contentDies(ctx context.Context, item work.Item, content *snapshotv1.VolumeSnapshotContent) error {
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
			return c.contentFailed(ctx, content, "SnapshotDeleteError", err)
		}
	}
	_, err = write(ctx, c.store, c.seen.contents, unchanged(content).release(FinalizerContent))
	return ignoreGone(err)
}

// isMember reports whether the snapshot of a content is deleted with its group.
func isMember(content *snapshotv1.VolumeSnapshotContent) bool {
	return content.Annotations[AnnGroupHandle] != "" || content.Status != nil && deref(content.Status.VolumeGroupSnapshotHandle) != ""
}

// isHeld reports whether the VolumeSnapshot of a content is there and does not let it go yet. The mark that it does is believed only
// while that VolumeSnapshot is being deleted: a content that was kept has the mark of an earlier one. It reads the store.
func (c *Controller) isHeld(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) (bool, error) {
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
	if dies(snap) && isMarked(content, AnnBeingDeleted) {
		return false, nil
	}
	return true, work.AwaitChange(c.seen.snapshots, snap)
}

// deleteSnapshot has the plugin delete the snapshot of a content. If it may have made one whose handle is not known, it is asked to
// make it once more, which returns the handle.
func (c *Controller) deleteSnapshot(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) (*snapshotv1.VolumeSnapshotContent, error) {
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
func (c *Controller) findSnapshot(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) (*snapshotv1.VolumeSnapshotContent, error) {
	o, err := c.orderOf(ctx, content)
	var made volume.Snapshot
	if err == nil {
		made, err = c.plugins.create(ctx, o.source, o.name, o.parameters)
	}
	if err != nil {
		return nil, fmt.Errorf("the plugin was told to make snapshot %q, and it is not known whether it has: if there is none, or you have "+
			"deleted it, remove annotation %q of the content: %w", pluginSnapshotName(content.Spec.VolumeSnapshotRef.UID), AnnBeingCreated, err)
	}
	e := unchanged(content).begin()
	e.object.Status = contentStatus(made)
	return write(ctx, c.store, c.seen.contents, e)
}

// checkOnlyContent refuses to delete a snapshot that another content stands for. One that is about to delete the snapshot itself does
// not count: of two that are deleted, neither waits for the other. It reads the store.
func (c *Controller) checkOnlyContent(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) error {
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
func (c *Controller) deletes(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) (bool, error) {
	if !dies(content) || content.Spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete || isMember(content) {
		return false, nil
	}
	held, err := c.isHeld(ctx, content)
	return !held, err
}

// Snapshot returns the snapshot of the VolumeSnapshot of that name in the namespace of claim, and the name of the plugin that has it. It
// has a persistentvolume.Controller restore volumes: give the Controller to its Options.Snapshots. The error matches [store.ErrNotFound]
// if there is no such snapshot or it is being deleted, volume.ErrTransient if it is not ready to use, and volume.ErrInfeasible if the
// claim asks for another volume mode. It reads the store.
func (c *Controller) Snapshot(ctx context.Context, claim *v1.PersistentVolumeClaim, name string) (volume.Snapshot, string, error) {
	snap, err := store.Get[*snapshotv1.VolumeSnapshot](ctx, c.store, claim.Namespace, name)
	if err != nil {
		return volume.Snapshot{}, "", err
	}
	// Nothing is begun any more. What may have been begun is finished: userOf keeps the snapshot for it.
	if dies(snap) && !has(claim, objects.FinalizerProvisioning) {
		return volume.Snapshot{}, "", fmt.Errorf("snapshot %q is being deleted: %w", name, store.ErrNotFound)
	}
	if boundTo(snap) == "" || isUnfinished(snap) {
		return volume.Snapshot{}, "", volume.Transient(fmt.Errorf("snapshot %q: %w", name, errNotReady))
	}
	content, err := store.Get[*snapshotv1.VolumeSnapshotContent](ctx, c.store, "", boundTo(snap))
	if err != nil {
		return volume.Snapshot{}, "", err
	}
	plugin := c.plugins.served(content.Spec.Driver)
	switch {
	case !isBoundTo(content.Spec.VolumeSnapshotRef, snap):
		return volume.Snapshot{}, "", fmt.Errorf("content %q is not that of snapshot %q: %w", content.Name, name, store.ErrNotFound)
	case !isReady(content):
		return volume.Snapshot{}, "", volume.Transient(fmt.Errorf("content %q: %w", content.Name, errNotReady))
	case plugin == "":
		return volume.Snapshot{}, "", fmt.Errorf("driver %q of snapshot %q is that of no plugin: %w", content.Spec.Driver, name, volume.ErrInfeasible)
	}
	if mode := content.Spec.SourceVolumeMode; mode != nil && *mode != *modeOf(claim.Spec.VolumeMode) && content.Annotations[AnnAllowModeChange] != "true" {
		return volume.Snapshot{}, "", fmt.Errorf("snapshot %q is of a volume of mode %q: ask for that mode, or set annotation %q of content %q to \"true\": %w",
			name, *mode, AnnAllowModeChange, content.Name, volume.ErrInfeasible)
	}
	return volume.Snapshot{
		Handle: handleOf(content), SourceVolume: deref(content.Spec.Source.VolumeHandle), GroupHandle: deref(content.Status.VolumeGroupSnapshotHandle),
		CreationTime: timeOf(content.Status.CreationTime), ReadyToUse: true, RestoreSize: deref(content.Status.RestoreSize),
	}, plugin, nil
}
