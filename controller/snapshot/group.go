package snapshot

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

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

// syncGroup does the next thing for one group.
func (c *Controller) syncGroup(ctx context.Context, name types.NamespacedName) error {
	group, ok := c.seen.groups.Get(name)
	if !ok {
		return nil
	}
	if dies(group) {
		return c.groupDies(ctx, group)
	}
	if (group.Spec.Source.Selector == nil) == (deref(group.Spec.Source.VolumeGroupSnapshotContentName) == "") {
		return c.groupWaits(ctx, group, "GroupSnapshotValidationError",
			errors.New("give either a selector of claims or the name of a content as the source of the group, and not both"))
	}
	group, err := write(ctx, c.store, c.seen.groups, unchanged(group).protect(FinalizerGroup))
	switch {
	case err != nil:
		return err
	case groupBoundTo(group) != "":
		return c.followGroupContent(ctx, group)
	case group.Spec.Source.Selector == nil:
		return c.bindToGroupContent(ctx, group)
	}
	return c.makeGroupContent(ctx, group)
}

// groupWaits writes why a group has no content, or none that can be used. It is looked at again when what it waits for changes.
func (c *Controller) groupWaits(ctx context.Context, group *groupv1.VolumeGroupSnapshot, reason string, why error) error {
	status := groupv1.VolumeGroupSnapshotStatus{}
	if group.Status != nil {
		status = *group.Status.DeepCopy()
	}
	status.ReadyToUse = new(false)
	status.Error = newError(status.Error, why.Error())
	if apiequality.Semantic.DeepEqual(group.Status, &status) {
		return nil
	}
	e := unchanged(group).begin()
	e.object.Status = &status
	if _, err := write(ctx, c.store, c.seen.groups, e); err != nil {
		return err
	}
	c.event(group, v1.EventTypeWarning, reason, why)
	return nil
}

// makeGroupContent creates the content of a group of claims, or finds the one that was created before. The claims are those that the
// selector selects now.
func (c *Controller) makeGroupContent(ctx context.Context, group *groupv1.VolumeGroupSnapshot) error {
	content, err := store.Get[*groupv1.VolumeGroupSnapshotContent](ctx, c.store, "", groupContentName(group.UID))
	switch {
	case err == nil && (len(content.Spec.Source.VolumeHandles) == 0 || !isBoundTo(content.Spec.VolumeGroupSnapshotRef, group)):
		return c.groupWaits(ctx, group, "GroupSnapshotContentMisbound", fmt.Errorf(
			"content %q has the name of that of the group and is not its: rename or delete it", content.Name))
	case err == nil:
		return c.bindGroup(ctx, group, content)
	case !errors.Is(err, store.ErrNotFound):
		return err
	}
	if err := c.queue.CheckBackoff(work.Item{Kind: workGroup, Name: store.NameOf(group)}, group.UID); err != nil {
		return err
	}
	claims, sources, why := c.sourcesOfGroup(group)
	if why != nil {
		return errors.Join(c.groupWaits(ctx, group, "CreateGroupSnapshotContentFailed", why), retry(group.UID, why))
	}
	class, why := c.groupClassOf(group, sources[0].plugin.GetPluginName())
	if why != nil {
		return c.groupWaits(ctx, group, "CreateGroupSnapshotContentFailed", why)
	}
	if group.Spec.VolumeGroupSnapshotClassName == nil {
		e := unchanged(group).begin()
		e.object.Spec.VolumeGroupSnapshotClassName = &class.Name
		if group, err = write(ctx, c.store, c.seen.groups, e); err != nil {
			return err
		}
	}
	wanted, why := newGroupContent(group, class, sources)
	if why != nil {
		return c.groupWaits(ctx, group, "CreateGroupSnapshotContentFailed", why)
	}
	release, err := c.protectClaims(ctx, claims...)
	if err != nil {
		return err
	}
	defer release()
	content, err = store.Create(ctx, c.store, wanted)
	if err != nil {
		return err // One that is there is found the next time.
	}
	c.seen.groupContents.Put(content)
	c.event(group, v1.EventTypeNormal, "CreatingGroupSnapshot", fmt.Errorf("a snapshot of %d claims is to be made", len(claims)))
	return c.bindGroup(ctx, group, content)
}

// sourcesOfGroup returns the claims that a group is made of, by their names, and their volumes, which are all of one plugin.
func (c *Controller) sourcesOfGroup(group *groupv1.VolumeGroupSnapshot) ([]*v1.PersistentVolumeClaim, []source, error) {
	selector, err := metav1.LabelSelectorAsSelector(group.Spec.Source.Selector)
	if err != nil {
		return nil, nil, fmt.Errorf("the selector of the group is malformed: %w", err)
	}
	var claims []*v1.PersistentVolumeClaim
	var sources []source
	for _, claim := range c.seen.claims.All() {
		if claim.Namespace != group.Namespace || !selector.Matches(labels.Set(claim.Labels)) {
			continue
		}
		from, err := c.sourceOfClaim(claim)
		if err != nil {
			return nil, nil, err
		}
		if len(sources) > 0 && from.plugin.GetPluginName() != sources[0].plugin.GetPluginName() {
			return nil, nil, fmt.Errorf("claim %q is one of plugin %q and claim %q one of plugin %q: select claims of one plugin",
				claim.Name, from.plugin.GetPluginName(), claims[0].Name, sources[0].plugin.GetPluginName())
		}
		claims, sources = append(claims, claim), append(sources, from)
	}
	if len(claims) == 0 {
		return nil, nil, fmt.Errorf("the selector %q selects no claim", selector)
	}
	if _, err := c.plugins.mgr.FindGroupSnapshottablePluginByName(sources[0].plugin.GetPluginName()); err != nil {
		return nil, nil, &pluginError{fmt.Errorf("no group of snapshots can be made: %w", err)}
	}
	return claims, sources, nil
}

// groupClassOf returns the class that a group names, and the default class for the driver of its volumes if it names none.
func (c *Controller) groupClassOf(group *groupv1.VolumeGroupSnapshot, pluginName string) (*groupv1.VolumeGroupSnapshotClass, error) {
	if name := group.Spec.VolumeGroupSnapshotClassName; name != nil {
		class, ok := c.seen.groupClasses.Get(objects.Named(*name))
		if !ok {
			return nil, fmt.Errorf("group snapshot class %q does not exist: create it, or name another", *name)
		}
		if !volume.IsDriverOfPlugin(class.Driver, pluginName) {
			return nil, fmt.Errorf("group snapshot class %q is for driver %q, and the volumes are those of plugin %q: name a class of that plugin",
				*name, class.Driver, pluginName)
		}
		return class, nil
	}
	var found []*groupv1.VolumeGroupSnapshotClass
	for _, class := range c.seen.groupClasses.All() {
		if class.Annotations[AnnDefaultGroupClass] == "true" && volume.IsDriverOfPlugin(class.Driver, pluginName) {
			found = append(found, class)
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("the group names no class, and plugin %q has no default group snapshot class: name a class", pluginName)
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("%d group snapshot classes of plugin %q are the default, %q and %q among them: name one, or unmark all others",
		len(found), pluginName, found[0].Name, found[1].Name)
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

// bindToGroupContent binds a group to the content that it names, which must name the group too.
func (c *Controller) bindToGroupContent(ctx context.Context, group *groupv1.VolumeGroupSnapshot) error {
	content, ok := c.seen.groupContents.Get(objects.Named(*group.Spec.Source.VolumeGroupSnapshotContentName))
	switch {
	case !ok:
		return c.groupWaits(ctx, group, "GroupSnapshotContentMissing", fmt.Errorf(
			"content %q does not exist: create it", *group.Spec.Source.VolumeGroupSnapshotContentName))
	case content.Spec.Source.GroupSnapshotHandles == nil:
		return c.groupWaits(ctx, group, "GroupSnapshotContentMismatch", fmt.Errorf(
			"content %q is one that is made of volumes: name one that has groupSnapshotHandles", content.Name))
	case !names(content.Spec.VolumeGroupSnapshotRef, group):
		ref := content.Spec.VolumeGroupSnapshotRef
		return c.groupWaits(ctx, group, "GroupSnapshotContentMisbound", fmt.Errorf(
			"content %q is for group %q with UID %q: name another content", content.Name, nameIn(ref), ref.UID))
	case dies(content):
		return c.groupWaits(ctx, group, "GroupSnapshotContentMissing", fmt.Errorf("content %q is being deleted", content.Name))
	}
	e := unchanged(content)
	if content.Spec.VolumeGroupSnapshotRef.UID == "" {
		e = e.begin()
		e.object.Spec.VolumeGroupSnapshotRef.UID = group.UID
	}
	content, err := write(ctx, c.store, c.seen.groupContents, e.protect(FinalizerGroupContent).unmark(AnnGroupBeingDeleted))
	if err != nil {
		return err
	}
	return c.bindGroup(ctx, group, content)
}

// bindGroup writes into a group which content it has.
func (c *Controller) bindGroup(ctx context.Context, group *groupv1.VolumeGroupSnapshot, content *groupv1.VolumeGroupSnapshotContent) error {
	e := unchanged(group).begin()
	e.object.Status = &groupv1.VolumeGroupSnapshotStatus{BoundVolumeGroupSnapshotContentName: &content.Name, ReadyToUse: new(false)}
	_, err := write(ctx, c.store, c.seen.groups, e)
	return err
}

// followGroupContent makes the snapshots of a group, and keeps the status of the group that of its content. The group is ready when its
// snapshots have their objects.
func (c *Controller) followGroupContent(ctx context.Context, group *groupv1.VolumeGroupSnapshot) error {
	content, ok := c.seen.groupContents.Get(objects.Named(groupBoundTo(group)))
	if !ok {
		var err error
		content, err = store.Get[*groupv1.VolumeGroupSnapshotContent](ctx, c.store, "", groupBoundTo(group))
		if errors.Is(err, store.ErrNotFound) {
			return c.groupWaits(ctx, group, "GroupSnapshotContentMissing", fmt.Errorf("content %q is gone: its snapshots are lost", groupBoundTo(group)))
		}
		if err != nil {
			return err
		}
	}
	if !isBoundTo(content.Spec.VolumeGroupSnapshotRef, group) {
		return c.groupWaits(ctx, group, "GroupSnapshotMisbound", fmt.Errorf("content %q is not that of this group", content.Name))
	}
	if content.Status != nil && deref(content.Status.VolumeGroupSnapshotHandle) != "" && !dies(content) {
		for _, info := range content.Status.VolumeSnapshotInfoList {
			if err := c.makeMember(ctx, group, content, info); err != nil {
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
	updated, err := write(ctx, c.store, c.seen.groups, e)
	if err == nil && *status.ReadyToUse && !deref(group.Status.ReadyToUse) {
		c.event(updated, v1.EventTypeNormal, "GroupSnapshotReady", errors.New("the snapshots of the group are ready to use"))
	}
	return err
}

// memberName ends the names of the objects of one snapshot of a group: the same each time, and no other snapshot's.
func memberName(group *groupv1.VolumeGroupSnapshot, info groupv1.VolumeSnapshotInfo) string {
	of := info.VolumeHandle
	if of == "" {
		of = info.SnapshotHandle
	}
	return fmt.Sprintf("%x", sha256.Sum256([]byte(string(group.UID)+of)))
}

// makeMember creates the content and the VolumeSnapshot of one snapshot of a group, unless they are there.
func (c *Controller) makeMember(
	ctx context.Context, group *groupv1.VolumeGroupSnapshot, of *groupv1.VolumeGroupSnapshotContent, info groupv1.VolumeSnapshotInfo,
) error {
	content, snap := newMember(group, of, info)
	if _, there := c.seen.contents.Get(objects.Named(content.Name)); !there {
		created, err := store.Create(ctx, c.store, content)
		if err != nil && !errors.Is(err, store.ErrAlreadyExists) {
			return err
		}
		if err == nil {
			c.seen.contents.Put(created)
		}
	}
	if _, there := c.seen.snapshots.Get(store.NameOf(snap)); !there {
		created, err := store.Create(ctx, c.store, snap)
		if err != nil && !errors.Is(err, store.ErrAlreadyExists) {
			return err
		}
		if err == nil {
			c.seen.snapshots.Put(created)
		}
	}
	return nil
}

func newMember(
	group *groupv1.VolumeGroupSnapshot, of *groupv1.VolumeGroupSnapshotContent, info groupv1.VolumeSnapshotInfo,
) (*snapshotv1.VolumeSnapshotContent, *snapshotv1.VolumeSnapshot) {
	name := memberName(group, info)
	content, snap := &snapshotv1.VolumeSnapshotContent{}, &snapshotv1.VolumeSnapshot{}
	content.Name, snap.Name, snap.Namespace = "snapcontent-"+name, "snapshot-"+name, group.Namespace
	content.Finalizers = []string{FinalizerContent}
	content.Annotations = map[string]string{AnnGroupHandle: *of.Status.VolumeGroupSnapshotHandle}
	content.Spec = snapshotv1.VolumeSnapshotContentSpec{
		VolumeSnapshotRef: v1.ObjectReference{
			APIVersion: snapshotv1.SchemeGroupVersion.String(), Kind: "VolumeSnapshot", Namespace: snap.Namespace, Name: snap.Name,
		},
		DeletionPolicy: of.Spec.DeletionPolicy, Driver: of.Spec.Driver,
		Source: snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: &info.SnapshotHandle},
	}
	snap.Finalizers = []string{FinalizerInGroup}
	snap.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: groupv1.SchemeGroupVersion.String(), Kind: groupKind, Name: group.Name, UID: group.UID,
	}}
	snap.Spec.Source.VolumeSnapshotContentName = &content.Name
	return content, snap
}

// groupDies lets a group go that is being deleted: after its VolumeSnapshots, and after its content, unless that is to be kept.
func (c *Controller) groupDies(ctx context.Context, group *groupv1.VolumeGroupSnapshot) error {
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
		kept, err := c.letGroupContentGo(ctx, group, content)
		if err != nil || !kept {
			return err
		}
	}
	_, err = write(ctx, c.store, c.seen.groups, unchanged(group).release(FinalizerGroup))
	return ignoreGone(err)
}

// letGroupContentGo deletes the content of a group that is being deleted, unless it is to be kept, and reports whether it is kept.
func (c *Controller) letGroupContentGo(
	ctx context.Context, group *groupv1.VolumeGroupSnapshot, content *groupv1.VolumeGroupSnapshotContent,
) (kept bool, err error) {
	content, err = write(ctx, c.store, c.seen.groupContents, unchanged(content).mark(AnnGroupBeingDeleted))
	if err != nil {
		return false, err
	}
	if content.Spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete {
		return true, nil
	}
	if err := c.deleteUnbound(ctx, group, content); err != nil {
		return false, err
	}
	if !dies(content) {
		if err := ignoreGone(store.Delete(ctx, c.store, content)); err != nil {
			return false, err
		}
	}
	return false, work.AwaitChange(c.seen.groupContents, content)
}

// deleteMembers deletes the VolumeSnapshots of a group, and reports whether any is left. No member goes while a claim is restored from
// one of them. It reads the store.
func (c *Controller) deleteMembers(ctx context.Context, group *groupv1.VolumeGroupSnapshot) (left bool, err error) {
	snaps, _, err := store.ListOf[*snapshotv1.VolumeSnapshot](ctx, c.store, group.Namespace)
	if err != nil {
		return false, err
	}
	for _, snap := range snaps {
		if groupOwner(snap).UID != group.UID {
			continue
		}
		left = true
		if dies(snap) {
			continue
		}
		if err := ignoreGone(store.Delete(ctx, c.store, snap)); err != nil {
			return false, err
		}
	}
	return left, nil
}

// deleteUnbound deletes the contents of snapshots of a group whose VolumeSnapshots were never created.
func (c *Controller) deleteUnbound(ctx context.Context, group *groupv1.VolumeGroupSnapshot, of *groupv1.VolumeGroupSnapshotContent) error {
	if of.Status == nil || deref(of.Status.VolumeGroupSnapshotHandle) == "" {
		return nil
	}
	for _, info := range of.Status.VolumeSnapshotInfoList {
		wanted, _ := newMember(group, of, info)
		content, err := store.Get[*snapshotv1.VolumeSnapshotContent](ctx, c.store, "", wanted.Name)
		if errors.Is(err, store.ErrNotFound) || err == nil && (dies(content) || content.Spec.VolumeSnapshotRef.UID != "") {
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
