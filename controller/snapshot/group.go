package snapshot

import (
	"context"
	"errors"
	"fmt"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/store"
)

// groupSync syncs groups: it binds them to contents, creates the VolumeSnapshots of their members, and releases them.
type groupSync struct {
	store    store.Store
	mirrors  *mirrors
	queue    *work.Queue
	events   recorder
	sources  *sources
	failures failures[*groupv1.VolumeGroupSnapshot]
	claims   *protection
}

const groupKind = "VolumeGroupSnapshot"

// groupOwner returns the reference of a snapshot to its group; one without a name if it is in none.
func groupOwner(snap *snapshotv1.VolumeSnapshot) metav1.OwnerReference {
	for _, owner := range snap.OwnerReferences {
		if owner.Kind == groupKind && owner.APIVersion == groupv1.SchemeGroupVersion.String() {
			return owner
		}
	}
	return metav1.OwnerReference{}
}

func groupBoundTo(group *groupv1.VolumeGroupSnapshot) string {
	if group.Status == nil {
		return ""
	}
	return deref(group.Status.BoundVolumeGroupSnapshotContentName)
}

// groupContentNamed returns the name of the content that a group has or will have.
func groupContentNamed(group *groupv1.VolumeGroupSnapshot) string {
	switch {
	case groupBoundTo(group) != "":
		return groupBoundTo(group)
	case deref(group.Spec.Source.VolumeGroupSnapshotContentName) != "":
		return *group.Spec.Source.VolumeGroupSnapshotContentName
	}
	return groupContentName(group.UID)
}

// sync does the next step for one group.
func (c *groupSync) sync(ctx context.Context, name types.NamespacedName) error {
	group, ok := c.mirrors.groups.Get(name)
	if !ok {
		return nil
	}
	if isBeingDeleted(group) {
		return c.syncDeleted(ctx, group)
	}
	if (group.Spec.Source.Selector == nil) == (deref(group.Spec.Source.VolumeGroupSnapshotContentName) == "") {
		return c.failures.wait(ctx, group, "GroupSnapshotValidationError",
			errors.New("give either a selector of claims or the name of a content as the source of the group, and not both"))
	}
	group, err := write(ctx, c.store, c.mirrors.groups, unchanged(group).protect(FinalizerGroup))
	switch {
	case err != nil:
		return err
	case groupBoundTo(group) != "":
		return c.followContent(ctx, group)
	case group.Spec.Source.Selector == nil:
		return c.bindToContent(ctx, group)
	}
	return c.createContent(ctx, group)
}

// createContent creates the content of a group of claims, or finds the one that was created before. The claims are those that the
// selector selects now.
func (c *groupSync) createContent(ctx context.Context, group *groupv1.VolumeGroupSnapshot) error {
	content, err := store.Get[*groupv1.VolumeGroupSnapshotContent](ctx, c.store, "", groupContentName(group.UID))
	switch {
	case err == nil && (len(content.Spec.Source.VolumeHandles) == 0 || !isBoundTo(content.Spec.VolumeGroupSnapshotRef, group)):
		return c.failures.wait(ctx, group, "GroupSnapshotContentMisbound", fmt.Errorf(
			"content %q has the name of that of the group and is not its: rename or delete it", content.Name))
	case err == nil:
		return c.bind(ctx, group, content)
	case !errors.Is(err, store.ErrNotFound):
		return err
	}
	if err := c.queue.CheckBackoff(work.Item{Kind: workGroup, Name: store.NameOf(group)}, group.UID); err != nil {
		return err
	}
	claims, sources, why := c.sourcesOfGroup(group)
	if why != nil {
		return errors.Join(c.failures.wait(ctx, group, "CreateGroupSnapshotContentFailed", why), retry(group.UID, why))
	}
	class, why := c.classOf(group, sources[0].plugin.GetPluginName())
	if why != nil {
		return c.failures.wait(ctx, group, "CreateGroupSnapshotContentFailed", why)
	}
	if group.Spec.VolumeGroupSnapshotClassName == nil {
		e := unchanged(group).begin()
		e.object.Spec.VolumeGroupSnapshotClassName = &class.Name
		if group, err = write(ctx, c.store, c.mirrors.groups, e); err != nil {
			return err
		}
	}
	wanted, why := newGroupContent(group, class, sources)
	if why != nil {
		return c.failures.wait(ctx, group, "CreateGroupSnapshotContentFailed", why)
	}
	release, err := c.claims.protectClaims(ctx, claims...)
	if err != nil {
		return err
	}
	defer release()
	content, err = store.Create(ctx, c.store, wanted)
	if err != nil {
		return err // One that is there is found the next time.
	}
	c.mirrors.groupContents.Put(content)
	c.events.record(group, v1.EventTypeNormal, "CreatingGroupSnapshot", fmt.Errorf("a snapshot of %d claims is to be made", len(claims)))
	return c.bind(ctx, group, content)
}

func newGroupContent(
	group *groupv1.VolumeGroupSnapshot, class *groupv1.VolumeGroupSnapshotClass, sources []source,
) (*groupv1.VolumeGroupSnapshotContent, error) {
	content := &groupv1.VolumeGroupSnapshotContent{}
	content.Name = groupContentName(group.UID)
	content.Finalizers = []string{FinalizerGroupContent}
	var handles []string
	var volumes string
	for _, from := range sources {
		handles = append(handles, from.handle)
		if volumes != "" {
			volumes += ","
		}
		volumes += from.spec.PersistentVolume.Name
	}
	content.Annotations = map[string]string{AnnSourceVolumes: volumes}
	content.Spec = groupv1.VolumeGroupSnapshotContentSpec{
		VolumeGroupSnapshotRef: v1.ObjectReference{
			APIVersion: groupv1.SchemeGroupVersion.String(), Kind: groupKind, Namespace: group.Namespace, Name: group.Name, UID: group.UID,
		},
		DeletionPolicy: class.DeletionPolicy, Driver: class.Driver, VolumeGroupSnapshotClassName: &class.Name,
		Source: groupv1.VolumeGroupSnapshotContentSource{VolumeHandles: handles},
	}
	return content, keepGroupSecret(content, group, class.Parameters)
}

// sourceVolumes returns the names of the PersistentVolumes that a content of a group is made of.
func sourceVolumes(content *groupv1.VolumeGroupSnapshotContent) []string {
	return splitNames(content.Annotations[AnnSourceVolumes])
}

// bindToContent binds a group to the content that it names, which must name the group too.
func (c *groupSync) bindToContent(ctx context.Context, group *groupv1.VolumeGroupSnapshot) error {
	content, ok := c.mirrors.groupContents.Get(objects.Named(*group.Spec.Source.VolumeGroupSnapshotContentName))
	switch {
	case !ok:
		return c.failures.wait(ctx, group, "GroupSnapshotContentMissing", fmt.Errorf(
			"content %q does not exist: create it", *group.Spec.Source.VolumeGroupSnapshotContentName))
	case content.Spec.Source.GroupSnapshotHandles == nil:
		return c.failures.wait(ctx, group, "GroupSnapshotContentMismatch", fmt.Errorf(
			"content %q is one that is made of volumes: name one that has groupSnapshotHandles", content.Name))
	case !names(content.Spec.VolumeGroupSnapshotRef, group):
		ref := content.Spec.VolumeGroupSnapshotRef
		return c.failures.wait(ctx, group, "GroupSnapshotContentMisbound", fmt.Errorf(
			"content %q is for group %q with UID %q: name another content", content.Name, nameIn(ref), ref.UID))
	case isBeingDeleted(content):
		return c.failures.wait(ctx, group, "GroupSnapshotContentMissing", fmt.Errorf("content %q is being deleted", content.Name))
	}
	e := unchanged(content)
	if content.Spec.VolumeGroupSnapshotRef.UID == "" {
		e = e.begin()
		e.object.Spec.VolumeGroupSnapshotRef.UID = group.UID
	}
	content, err := write(ctx, c.store, c.mirrors.groupContents, e.protect(FinalizerGroupContent).unmark(AnnGroupBeingDeleted))
	if err != nil {
		return err
	}
	return c.bind(ctx, group, content)
}

// bind writes into a group which content it has.
func (c *groupSync) bind(ctx context.Context, group *groupv1.VolumeGroupSnapshot, content *groupv1.VolumeGroupSnapshotContent) error {
	e := unchanged(group).begin()
	e.object.Status = &groupv1.VolumeGroupSnapshotStatus{BoundVolumeGroupSnapshotContentName: &content.Name, ReadyToUse: new(false)}
	_, err := write(ctx, c.store, c.mirrors.groups, e)
	return err
}

// followContent makes the snapshots of a group, and keeps the status of the group that of its content. The group is ready when its
// snapshots have their objects.
func (c *groupSync) followContent(ctx context.Context, group *groupv1.VolumeGroupSnapshot) error {
	content, ok := c.mirrors.groupContents.Get(objects.Named(groupBoundTo(group)))
	if !ok {
		var err error
		content, err = store.Get[*groupv1.VolumeGroupSnapshotContent](ctx, c.store, "", groupBoundTo(group))
		if errors.Is(err, store.ErrNotFound) {
			return c.failures.wait(ctx, group, "GroupSnapshotContentMissing", fmt.Errorf("content %q is gone: its snapshots are lost", groupBoundTo(group)))
		}
		if err != nil {
			return err
		}
	}
	if !isBoundTo(content.Spec.VolumeGroupSnapshotRef, group) {
		return c.failures.wait(ctx, group, "GroupSnapshotMisbound", fmt.Errorf("content %q is not that of this group", content.Name))
	}
	if content.Status != nil && deref(content.Status.VolumeGroupSnapshotHandle) != "" && !isBeingDeleted(content) {
		for _, info := range content.Status.VolumeSnapshotInfoList {
			if err := c.createMember(ctx, group, content, info); err != nil {
				return err
			}
		}
	}
	status := &groupv1.VolumeGroupSnapshotStatus{BoundVolumeGroupSnapshotContentName: &content.Name, ReadyToUse: new(isGroupReady(content))}
	if content.Status != nil {
		status.CreationTime, status.Error = content.Status.CreationTime.DeepCopy(), content.Status.Error.DeepCopy()
	}
	if apiequality.Semantic.DeepEqual(group.Status, status) {
		return nil
	}
	e := unchanged(group).begin()
	e.object.Status = status
	updated, err := write(ctx, c.store, c.mirrors.groups, e)
	if err == nil && *status.ReadyToUse && !deref(group.Status.ReadyToUse) {
		c.events.record(updated, v1.EventTypeNormal, "GroupSnapshotReady", errors.New("the snapshots of the group are ready to use"))
	}
	return err
}
