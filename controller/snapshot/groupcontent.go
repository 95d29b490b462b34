package snapshot

import (
	"context"
	"errors"
	"fmt"
	"slices"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// groupContentSync syncs contents of groups: plugins create and delete their snapshots.
type groupContentSync struct {
	store    store.Store
	mirrors  *mirrors
	queue    *work.Queue
	plugins  *plugins
	events   recorder
	sources  *sources
	failures failures[*groupv1.VolumeGroupSnapshotContent]
}

// sync does the next step for the content of one group.
func (c *groupContentSync) sync(ctx context.Context, item work.Item) error {
	content, ok := c.mirrors.groupContents.Get(item.Name)
	if !ok || c.plugins.served(content.Spec.Driver) == "" {
		return nil
	}
	if isBeingDeleted(content) {
		return c.syncDeleted(ctx, item, content)
	}
	if (len(content.Spec.Source.VolumeHandles) == 0) == (content.Spec.Source.GroupSnapshotHandles == nil) {
		return c.failures.fail(ctx, content, "GroupContentValidationError", fmt.Errorf(
			"name either volumeHandles or groupSnapshotHandles as the source of the content, and not both: %w", volume.ErrInvalid))
	}
	content, err := write(ctx, c.store, c.mirrors.groupContents, unchanged(content).protect(FinalizerGroupContent))
	switch {
	case err != nil:
		return err
	case isGroupReady(content):
		_, err := write(ctx, c.store, c.mirrors.groupContents, unchanged(content).unmark(AnnGroupBeingCreated))
		return err
	}
	if err := c.queue.CheckBackoff(item, content.UID); err != nil {
		return err
	}
	plugin, err := c.plugins.mgr.FindGroupSnapshottablePluginByName(c.plugins.served(content.Spec.Driver))
	if err != nil {
		return c.failures.fail(ctx, content, "GroupSnapshotCreationFailed", err)
	}
	if groupHandleOf(content) == "" {
		return c.createGroup(ctx, content, plugin)
	}
	return c.updateGroup(ctx, content, plugin)
}

// requestOf returns the plugin's options for a content whose sources are volumes. It reads the store.
func (c *groupContentSync) requestOf(ctx context.Context, content *groupv1.VolumeGroupSnapshotContent) (volume.GroupSnapshotOptions, error) {
	uid := content.Spec.VolumeGroupSnapshotRef.UID
	options := volume.GroupSnapshotOptions{Name: pluginGroupName(uid)}
	if content.Name != groupContentName(uid) {
		return options, fmt.Errorf("the content is none that was made for a VolumeGroupSnapshot: name the group by its groupSnapshotHandles: %w",
			volume.ErrInvalid)
	}
	volumes := sourceVolumes(content)
	if len(volumes) != len(content.Spec.Source.VolumeHandles) {
		return options, fmt.Errorf("annotation %q does not name the PersistentVolumes of volumes %q: put it back, or delete the VolumeGroupSnapshot",
			AnnSourceVolumes, content.Spec.Source.VolumeHandles)
	}
	for i, name := range volumes {
		from, err := c.sources.named(ctx, name, content.Spec.Source.VolumeHandles[i])
		if err != nil {
			return options, err
		}
		options.Sources = append(options.Sources, from.spec)
	}
	if name := deref(content.Spec.VolumeGroupSnapshotClassName); name != "" {
		class, err := store.Get[*groupv1.VolumeGroupSnapshotClass](ctx, c.store, "", name)
		if err != nil {
			return options, volume.Transient(fmt.Errorf("group snapshot class %q, whose parameters the plugin needs: %w", name, err))
		}
		options.Parameters = class.Parameters
	}
	return options, nil
}

// createGroup has the plugin make the snapshots of a content. The content says so before it is called.
func (c *groupContentSync) createGroup(
	ctx context.Context, content *groupv1.VolumeGroupSnapshotContent, plugin volume.GroupSnapshottableVolumePlugin,
) error {
	begun := isMarked(content, AnnGroupBeingCreated)
	if !begun {
		ref := content.Spec.VolumeGroupSnapshotRef
		group, err := store.Get[*groupv1.VolumeGroupSnapshot](ctx, c.store, ref.Namespace, ref.Name)
		if errors.Is(err, store.ErrNotFound) || err == nil && (!isBoundTo(ref, group) || groupContentNamed(group) != content.Name || isBeingDeleted(group)) {
			return nil // The group is gone or being deleted.
		}
		if err != nil {
			return err
		}
	}
	options, err := c.requestOf(ctx, content)
	if err != nil {
		return c.failures.fail(ctx, content, "GroupSnapshotCreationFailed", err)
	}
	content, err = write(ctx, c.store, c.mirrors.groupContents, unchanged(content).mark(AnnGroupBeingCreated))
	if err != nil {
		return err
	}
	made, err := c.plugins.createGroup(ctx, plugin, options)
	if err == nil {
		return c.recordStatus(ctx, content, made)
	}
	if ctx.Err() == nil && !begun && outcome.ClassOf(err) != outcome.Uncertain {
		unmarked, unmarkErr := write(ctx, c.store, c.mirrors.groupContents, unchanged(content).unmark(AnnGroupBeingCreated))
		if unmarkErr != nil {
			return errors.Join(&work.CallError{UID: content.UID, Err: err}, unmarkErr)
		}
		content = unmarked
	}
	return c.failures.fail(ctx, content, "GroupSnapshotCreationFailed", err)
}

// updateGroup reads from the plugin whether the snapshots of a group are ready to use.
func (c *groupContentSync) updateGroup(
	ctx context.Context, content *groupv1.VolumeGroupSnapshotContent, plugin volume.GroupSnapshottableVolumePlugin,
) error {
	found, err := c.plugins.getGroup(ctx, plugin, groupHandleOf(content), memberHandlesOf(content))
	if errors.Is(err, volume.ErrUnsupported) {
		found, err = c.groupWithoutQuery(ctx, content, plugin)
	}
	if err == nil && found.Handle != groupHandleOf(content) {
		err = fmt.Errorf("group %q is now %q: %w", groupHandleOf(content), found.Handle, volume.ErrInvalid)
	}
	if err != nil {
		return c.failures.fail(ctx, content, "GroupSnapshotContentCheckandUpdateFailed", err)
	}
	return c.recordStatus(ctx, content, found)
}

// groupWithoutQuery returns the state of a group if the plugin cannot report groups. Handles in the content's source count as ready;
// otherwise the plugin creates the group again under its name, which returns the existing one.
func (c *groupContentSync) groupWithoutQuery(
	ctx context.Context, content *groupv1.VolumeGroupSnapshotContent, plugin volume.GroupSnapshottableVolumePlugin,
) (volume.GroupSnapshot, error) {
	given := content.Spec.Source.GroupSnapshotHandles
	if given == nil {
		options, err := c.requestOf(ctx, content)
		if err != nil {
			return volume.GroupSnapshot{}, err
		}
		return c.plugins.createGroup(ctx, plugin, options)
	}
	found := volume.GroupSnapshot{Handle: given.VolumeGroupSnapshotHandle, ReadyToUse: true}
	for _, handle := range given.VolumeSnapshotHandles {
		found.Snapshots = append(found.Snapshots, volume.Snapshot{Handle: handle, GroupHandle: found.Handle, ReadyToUse: true})
	}
	return found, nil
}

// recordStatus writes the state of a group, as the plugin reports it, into the status of its content. Then it removes the mark of the
// call.
func (c *groupContentSync) recordStatus(ctx context.Context, content *groupv1.VolumeGroupSnapshotContent, found volume.GroupSnapshot) error {
	status := groupStatus(found)
	if !apiequality.Semantic.DeepEqual(content.Status, status) {
		e := unchanged(content).begin()
		e.object.Status = status
		var err error
		if content, err = write(ctx, c.store, c.mirrors.groupContents, e); err != nil {
			return err
		}
	}
	if _, err := write(ctx, c.store, c.mirrors.groupContents, unchanged(content).unmark(AnnGroupBeingCreated)); err != nil {
		return err
	}
	if !found.ReadyToUse {
		return &work.CallError{UID: content.UID, Err: fmt.Errorf("content of group %q: %w", content.Name, errNotReady)}
	}
	return nil
}

func groupStatus(found volume.GroupSnapshot) *groupv1.VolumeGroupSnapshotContentStatus {
	status := &groupv1.VolumeGroupSnapshotContentStatus{VolumeGroupSnapshotHandle: &found.Handle, ReadyToUse: &found.ReadyToUse}
	if !found.CreationTime.IsZero() {
		status.CreationTime = new(metav1.NewTime(found.CreationTime).Rfc3339Copy())
	}
	for _, member := range found.Snapshots {
		one := contentStatus(member)
		status.VolumeSnapshotInfoList = append(status.VolumeSnapshotInfoList, groupv1.VolumeSnapshotInfo{
			VolumeHandle: member.SourceVolume, SnapshotHandle: member.Handle, CreationTime: one.CreationTime,
			ReadyToUse: one.ReadyToUse, RestoreSize: one.RestoreSize,
		})
	}
	return status
}

// syncDeleted releases the content of a group that is being deleted: after its VolumeGroupSnapshot is gone, and after the snapshots are
// deleted, unless the policy retains them.
func (c *groupContentSync) syncDeleted(ctx context.Context, item work.Item, content *groupv1.VolumeGroupSnapshotContent) error {
	if !has(content, FinalizerGroupContent) {
		return nil
	}
	held, err := c.isHeld(ctx, content)
	if err != nil || held {
		return err
	}
	mayExist := groupHandleOf(content) != "" || isMarked(content, AnnGroupBeingCreated)
	if mayExist && content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete {
		if err := c.queue.CheckBackoff(item, content.UID); err != nil {
			return err
		}
		if content, err = c.deleteGroup(ctx, content); errors.Is(err, store.ErrConflict) {
			return err
		} else if err != nil {
			return c.failures.fail(ctx, content, "GroupSnapshotDeleteError", err)
		}
	}
	_, err = write(ctx, c.store, c.mirrors.groupContents, unchanged(content).release(FinalizerGroupContent))
	return ignoreGone(err)
}

// isHeld reports whether the VolumeGroupSnapshot of a content exists and does not release it yet, as contentSync.isHeld does. It reads the
// store.
func (c *groupContentSync) isHeld(ctx context.Context, content *groupv1.VolumeGroupSnapshotContent) (bool, error) {
	ref := content.Spec.VolumeGroupSnapshotRef
	if ref.UID == "" {
		return false, nil
	}
	group, err := store.Get[*groupv1.VolumeGroupSnapshot](ctx, c.store, ref.Namespace, ref.Name)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil || group.UID != ref.UID {
		return false, err
	}
	if isBeingDeleted(group) && isMarked(content, AnnGroupBeingDeleted) {
		return false, nil
	}
	return true, work.AwaitChange(c.mirrors.groups, group)
}

// deleteGroup has the plugin delete the snapshots of a content. If it may have made some whose handle is not known, it is asked to make
// them once more, which returns the handle.
func (c *groupContentSync) deleteGroup(ctx context.Context, content *groupv1.VolumeGroupSnapshotContent) (*groupv1.VolumeGroupSnapshotContent, error) {
	plugin, err := c.plugins.mgr.FindGroupSnapshottablePluginByName(c.plugins.served(content.Spec.Driver))
	if err != nil {
		return content, err
	}
	if groupHandleOf(content) == "" {
		options, err := c.requestOf(ctx, content)
		var made volume.GroupSnapshot
		if err == nil {
			made, err = c.plugins.createGroup(ctx, plugin, options)
		}
		if err != nil {
			return content, fmt.Errorf("the plugin was called to create group %q, and it is not known whether it has: if there is none, or you have "+
				"deleted it, remove annotation %q of the content: %w", options.Name, AnnGroupBeingCreated, err)
		}
		e := unchanged(content).begin()
		e.object.Status = groupStatus(made)
		if content, err = write(ctx, c.store, c.mirrors.groupContents, e); err != nil {
			return content, err
		}
	}
	if err := c.checkOnlyContent(ctx, content); err != nil {
		return content, err
	}
	return content, c.plugins.deleteGroup(ctx, plugin, groupHandleOf(content), memberHandlesOf(content))
}

// checkOnlyContent refuses to delete a group that another content stands for, or one of whose snapshots has a VolumeSnapshot. It
// reads the store.
func (c *groupContentSync) checkOnlyContent(ctx context.Context, content *groupv1.VolumeGroupSnapshotContent) error {
	all, _, err := store.ListOf[*groupv1.VolumeGroupSnapshotContent](ctx, c.store, "")
	if err != nil {
		return err
	}
	served := c.plugins.served(content.Spec.Driver)
	for _, other := range all {
		if other.UID == content.UID || groupHandleOf(other) != groupHandleOf(content) || c.plugins.served(other.Spec.Driver) != served {
			continue
		}
		deletes, err := c.deletes(ctx, other)
		if err != nil {
			return err
		}
		if !deletes {
			return fmt.Errorf("content %q has group %q too: delete that content, or set the deletion policy of this one to Retain: %w",
				other.Name, groupHandleOf(content), volume.ErrInUse)
		}
	}
	members, _, err := store.ListOf[*snapshotv1.VolumeSnapshotContent](ctx, c.store, "")
	handles := memberHandlesOf(content)
	for _, member := range members {
		if slices.Contains(handles, handleOf(member)) && c.plugins.served(member.Spec.Driver) == served {
			return fmt.Errorf("content %q has snapshot %q of the group: delete its VolumeSnapshot first: %w",
				member.Name, handleOf(member), volume.ErrInUse)
		}
	}
	return err
}

// deletes reports whether a content is being deleted, with its snapshots, and no VolumeGroupSnapshot holds it. It reads the store.
func (c *groupContentSync) deletes(ctx context.Context, content *groupv1.VolumeGroupSnapshotContent) (bool, error) {
	if !isBeingDeleted(content) || content.Spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete {
		return false, nil
	}
	held, err := c.isHeld(ctx, content)
	return !held, err
}
