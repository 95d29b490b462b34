package snapshot

import (
	"context"
	"errors"
	"fmt"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// contentSync syncs contents: plugins create and delete their snapshots.
type contentSync struct {
	store    store.Store
	mirrors  *mirrors
	queue    *work.Queue
	plugins  *plugins
	events   recorder
	sources  *sources
	failures failures[*snapshotv1.VolumeSnapshotContent]
}

// sync does the next step for one content.
func (c *contentSync) sync(ctx context.Context, item work.Item) error {
	content, ok := c.mirrors.contents.Get(item.Name)
	if !ok {
		return nil
	}
	if c.plugins.served(content.Spec.Driver) == "" {
		return nil // The program that serves the driver does it.
	}
	if isBeingDeleted(content) {
		return c.syncDeleted(ctx, item, content)
	}
	if (content.Spec.Source.VolumeHandle == nil) == (content.Spec.Source.SnapshotHandle == nil) {
		return c.failures.fail(ctx, content, "ContentValidationError", fmt.Errorf(
			"name either a volumeHandle or a snapshotHandle as the source of the content, and not both: %w", volume.ErrInvalid))
	}
	content, err := write(ctx, c.store, c.mirrors.contents, unchanged(content).protect(FinalizerContent))
	switch {
	case err != nil:
		return err
	case isReady(content):
		_, err := write(ctx, c.store, c.mirrors.contents, unchanged(content).unmark(AnnBeingCreated))
		return err
	}
	if err := c.queue.CheckBackoff(item, content.UID); err != nil {
		return err
	}
	if handleOf(content) == "" {
		return c.createSnapshot(ctx, content)
	}
	return c.updateSnapshot(ctx, content)
}

// snapshotRequest is the input of the plugin's call that creates the snapshot of a content.
type snapshotRequest struct {
	source     source
	name       string
	parameters map[string]string
}

// requestOf returns the request for a content whose source is a volume. It reads the store.
func (c *contentSync) requestOf(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) (snapshotRequest, error) {
	uid := content.Spec.VolumeSnapshotRef.UID
	if content.Spec.Source.VolumeHandle == nil || content.Name != contentName(uid) {
		return snapshotRequest{}, fmt.Errorf("the content is none that was made for a VolumeSnapshot: name the snapshot by its snapshotHandle: %w", volume.ErrInvalid)
	}
	names := splitNames(content.Annotations[AnnSourceVolumes])
	if len(names) != 1 {
		return snapshotRequest{}, fmt.Errorf("annotation %q does not name the PersistentVolume of volume %q: put it back, or delete the VolumeSnapshot",
			AnnSourceVolumes, *content.Spec.Source.VolumeHandle)
	}
	from, err := c.sources.named(ctx, names[0], *content.Spec.Source.VolumeHandle)
	if err != nil {
		return snapshotRequest{}, err
	}
	if name := from.plugin.GetPluginName(); !volume.IsDriverOfPlugin(content.Spec.Driver, name) {
		return snapshotRequest{}, fmt.Errorf("volume %q is one of plugin %q, and the content is for driver %q: %w",
			names[0], name, content.Spec.Driver, volume.ErrInvalid)
	}
	made := snapshotRequest{source: from, name: pluginSnapshotName(uid)}
	if name := deref(content.Spec.VolumeSnapshotClassName); name != "" {
		class, err := store.Get[*snapshotv1.VolumeSnapshotClass](ctx, c.store, "", name)
		if err != nil {
			return snapshotRequest{}, volume.Transient(fmt.Errorf("snapshot class %q, whose parameters the plugin needs: %w", name, err))
		}
		made.parameters = class.Parameters
	}
	return made, nil
}

func splitNames(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}

// createSnapshot has the plugin make the snapshot of a content. The content says so before it is called.
func (c *contentSync) createSnapshot(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) error {
	begun := isMarked(content, AnnBeingCreated)
	if !begun {
		wanted, err := c.isWanted(ctx, content)
		if err != nil || !wanted {
			return err
		}
	}
	o, err := c.requestOf(ctx, content)
	if err != nil {
		return c.failures.fail(ctx, content, "SnapshotCreationFailed", err)
	}
	content, err = write(ctx, c.store, c.mirrors.contents, unchanged(content).mark(AnnBeingCreated))
	if err != nil {
		return err
	}
	made, err := c.plugins.create(ctx, o.source, o.name, o.parameters)
	if err == nil {
		return c.recordStatus(ctx, content, made)
	}
	if ctx.Err() == nil && !begun && outcome.ClassOf(err) != outcome.Uncertain {
		unmarked, unmarkErr := write(ctx, c.store, c.mirrors.contents, unchanged(content).unmark(AnnBeingCreated))
		if unmarkErr != nil {
			return errors.Join(&work.CallError{UID: content.UID, Err: err}, unmarkErr)
		}
		content = unmarked
	}
	return c.failures.fail(ctx, content, "SnapshotCreationFailed", err)
}

// isWanted reports whether the snapshot of a content for which nothing was begun is still to be made. It reads the store.
func (c *contentSync) isWanted(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) (bool, error) {
	ref := content.Spec.VolumeSnapshotRef
	snap, err := store.Get[*snapshotv1.VolumeSnapshot](ctx, c.store, ref.Namespace, ref.Name)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	return err == nil && isBoundTo(ref, snap) && contentNamed(snap) == content.Name && !isBeingDeleted(snap), err
}

func isMarked(obj store.Object, key string) bool {
	_, marked := obj.GetAnnotations()[key]
	return marked
}

// updateSnapshot reads from the plugin whether a snapshot is ready to use.
func (c *contentSync) updateSnapshot(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) error {
	plugin, err := c.plugins.mgr.FindSnapshottablePluginByName(c.plugins.served(content.Spec.Driver))
	if err != nil {
		return c.failures.fail(ctx, content, "SnapshotContentCheckandUpdateFailed", err)
	}
	found, err := c.plugins.get(ctx, plugin, handleOf(content))
	switch {
	case errors.Is(err, volume.ErrUnsupported) && content.Spec.Source.SnapshotHandle != nil:
		// The plugin cannot report snapshots: the handle in the content's source counts.
		found, err = volume.Snapshot{Handle: handleOf(content), ReadyToUse: true}, nil
	case errors.Is(err, volume.ErrUnsupported):
		var o snapshotRequest
		if o, err = c.requestOf(ctx, content); err == nil {
			found, err = c.plugins.create(ctx, o.source, o.name, o.parameters)
		}
	}
	if err == nil && found.Handle != handleOf(content) {
		err = fmt.Errorf("snapshot %q is now %q: %w", handleOf(content), found.Handle, volume.ErrInvalid)
	}
	if err != nil {
		return c.failures.fail(ctx, content, "SnapshotContentCheckandUpdateFailed", err)
	}
	return c.recordStatus(ctx, content, found)
}

// recordStatus writes the state of a snapshot, as the plugin reports it, into the status of its content. Then it removes the mark of the
// call.
func (c *contentSync) recordStatus(ctx context.Context, content *snapshotv1.VolumeSnapshotContent, found volume.Snapshot) error {
	status := contentStatus(found)
	if group := content.Annotations[AnnGroupHandle]; group != "" {
		status.VolumeGroupSnapshotHandle = &group
	}
	if !apiequality.Semantic.DeepEqual(content.Status, status) {
		e := unchanged(content).begin()
		e.object.Status = status
		var err error
		if content, err = write(ctx, c.store, c.mirrors.contents, e); err != nil {
			return err
		}
	}
	if _, err := write(ctx, c.store, c.mirrors.contents, unchanged(content).unmark(AnnBeingCreated)); err != nil {
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
