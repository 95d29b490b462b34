package snapshot

import (
	"context"
	"errors"
	"fmt"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// boundTo returns the name of the content in the status of a snapshot; "" for none.
func boundTo(snap *snapshotv1.VolumeSnapshot) string {
	if snap.Status == nil {
		return ""
	}
	return deref(snap.Status.BoundVolumeSnapshotContentName)
}

// contentNamed returns the name of the content that a snapshot has or will have.
func contentNamed(snap *snapshotv1.VolumeSnapshot) string {
	switch {
	case boundTo(snap) != "":
		return boundTo(snap)
	case deref(snap.Spec.Source.VolumeSnapshotContentName) != "":
		return *snap.Spec.Source.VolumeSnapshotContentName
	}
	return contentName(snap.UID)
}

// isUnfinished reports whether the volume of a snapshot's claim may still be read.
func isUnfinished(snap *snapshotv1.VolumeSnapshot) bool {
	return snap.Status == nil || !deref(snap.Status.ReadyToUse)
}

// syncSnapshot does the next thing for one snapshot.
func (c *Controller) syncSnapshot(ctx context.Context, name types.NamespacedName) error {
	snap, ok := c.seen.snapshots.Get(name)
	if !ok {
		return nil
	}
	if dies(snap) {
		return c.snapshotDies(ctx, snap)
	}
	from := snap.Spec.Source
	if (deref(from.PersistentVolumeClaimName) == "") == (deref(from.VolumeSnapshotContentName) == "") {
		return c.snapshotWaits(ctx, snap, "SnapshotValidationError",
			errors.New("name either a claim or a content as the source of the snapshot, and not both"))
	}
	snap, err := write(ctx, c.store, c.seen.snapshots, unchanged(snap).protect(FinalizerBound, FinalizerAsSource))
	if err != nil {
		return err
	}
	switch {
	case boundTo(snap) != "":
		return c.followContent(ctx, snap)
	case deref(from.VolumeSnapshotContentName) != "":
		return c.bindToContent(ctx, snap)
	}
	return c.makeContent(ctx, snap)
}

// snapshotWaits writes why a snapshot has no content, or none that can be used. It is looked at again when what it waits for changes.
func (c *Controller) snapshotWaits(ctx context.Context, snap *snapshotv1.VolumeSnapshot, reason string, why error) error {
	status := snapshotv1.VolumeSnapshotStatus{}
	if snap.Status != nil {
		status = *snap.Status.DeepCopy()
	}
	status.ReadyToUse = new(false)
	status.Error = newError(status.Error, why.Error())
	if apiequality.Semantic.DeepEqual(snap.Status, &status) {
		return nil
	}
	e := unchanged(snap).begin()
	e.object.Status = &status
	if _, err := write(ctx, c.store, c.seen.snapshots, e); err != nil {
		return err
	}
	c.event(snap, v1.EventTypeWarning, reason, why)
	return nil
}

// makeContent creates the content of a snapshot of a claim, or finds the one that was created before.
func (c *Controller) makeContent(ctx context.Context, snap *snapshotv1.VolumeSnapshot) error {
	content, err := store.Get[*snapshotv1.VolumeSnapshotContent](ctx, c.store, "", contentName(snap.UID))
	switch {
	case err == nil && (content.Spec.Source.VolumeHandle == nil || !isBoundTo(content.Spec.VolumeSnapshotRef, snap)):
		return c.snapshotWaits(ctx, snap, "SnapshotContentMisbound", fmt.Errorf(
			"content %q has the name of that of the snapshot and is not its: rename or delete it", content.Name))
	case err == nil:
		return c.bind(ctx, snap, content)
	case !errors.Is(err, store.ErrNotFound):
		return err
	}
	if err := c.queue.CheckBackoff(work.Item{Kind: workSnapshot, Name: store.NameOf(snap)}, snap.UID); err != nil {
		return err
	}
	claim, from, why := c.sourceOfSnapshot(snap)
	if why != nil {
		return errors.Join(c.snapshotWaits(ctx, snap, "SnapshotContentCreationFailed", why), retry(snap.UID, why))
	}
	class, why := c.classOf(snap, from.plugin.GetPluginName())
	if why != nil {
		return c.snapshotWaits(ctx, snap, "SnapshotContentCreationFailed", why)
	}
	if snap.Spec.VolumeSnapshotClassName == nil {
		e := unchanged(snap).begin()
		e.object.Spec.VolumeSnapshotClassName = &class.Name
		if snap, err = write(ctx, c.store, c.seen.snapshots, e); err != nil {
			return err
		}
	}
	wanted, why := newContent(snap, class, from)
	if why != nil {
		return c.snapshotWaits(ctx, snap, "SnapshotContentCreationFailed", why)
	}
	release, err := c.protectClaims(ctx, claim)
	if err != nil {
		return err
	}
	defer release()
	content, err = store.Create(ctx, c.store, wanted)
	if err != nil {
		return err // One that is there is found the next time.
	}
	c.seen.contents.Put(content)
	c.event(snap, v1.EventTypeNormal, "CreatingSnapshot", fmt.Errorf("a snapshot of claim %q is to be made", claim.Name))
	return c.bind(ctx, snap, content)
}

// pluginError is what a plugin said of a volume, or that no plugin here serves it. Nothing reports that it says otherwise now: it is
// asked again after a back-off.
type pluginError struct{ error }

// Unwrap returns the cause.
func (e *pluginError) Unwrap() error { return e.error }

// retry has the object of uid looked at again after a back-off if a plugin is the cause of an error.
func retry(uid types.UID, why error) error {
	var said *pluginError
	if errors.As(why, &said) {
		return &work.CallError{UID: uid, Err: why}
	}
	return nil
}

// sourceOfSnapshot returns the claim that a snapshot is made of, and its volume.
func (c *Controller) sourceOfSnapshot(snap *snapshotv1.VolumeSnapshot) (*v1.PersistentVolumeClaim, source, error) {
	name := types.NamespacedName{Namespace: snap.Namespace, Name: *snap.Spec.Source.PersistentVolumeClaimName}
	claim, ok := c.seen.claims.Get(name)
	if !ok {
		return nil, source{}, fmt.Errorf("claim %q does not exist: create it, or name another", name)
	}
	from, err := c.sourceOfClaim(claim)
	return claim, from, err
}

// sourceOfClaim returns the volume of a claim from which a snapshot may be made.
func (c *Controller) sourceOfClaim(claim *v1.PersistentVolumeClaim) (source, error) {
	name := store.NameOf(claim)
	if dies(claim) {
		return source{}, fmt.Errorf("claim %q is being deleted: make the snapshot of another claim", name)
	}
	if claim.Spec.VolumeName == "" || claim.Status.Phase != v1.ClaimBound {
		return source{}, fmt.Errorf("claim %q is not bound to a volume yet", name)
	}
	pv, ok := c.seen.volumes.Get(objects.Named(claim.Spec.VolumeName))
	if !ok || !objects.OwnedBy(pv, claim) {
		return source{}, fmt.Errorf("volume %q is not there, or not that of claim %q", claim.Spec.VolumeName, name)
	}
	from, err := c.plugins.sourceOf(pv)
	if err != nil {
		return source{}, &pluginError{err}
	}
	return from, nil
}

// classOf returns the class that a snapshot names, and the default class for the driver of its volume if it names none.
func (c *Controller) classOf(snap *snapshotv1.VolumeSnapshot, pluginName string) (*snapshotv1.VolumeSnapshotClass, error) {
	if name := snap.Spec.VolumeSnapshotClassName; name != nil {
		class, ok := c.seen.classes.Get(objects.Named(*name))
		if !ok {
			return nil, fmt.Errorf("snapshot class %q does not exist: create it, or name another", *name)
		}
		if !volume.IsDriverOfPlugin(class.Driver, pluginName) {
			return nil, fmt.Errorf("snapshot class %q is for driver %q, and the volume is one of plugin %q: name a class of that plugin",
				*name, class.Driver, pluginName)
		}
		return class, nil
	}
	var found []*snapshotv1.VolumeSnapshotClass
	for _, class := range c.seen.classes.All() {
		if class.Annotations[AnnDefaultClass] == "true" && volume.IsDriverOfPlugin(class.Driver, pluginName) {
			found = append(found, class)
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("the snapshot names no class, and plugin %q has no default snapshot class: name a class", pluginName)
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("%d snapshot classes of plugin %q are the default, %q and %q among them: name one, or unmark all others",
		len(found), pluginName, found[0].Name, found[1].Name)
}

// newContent returns the content of a snapshot that is to be made.
func newContent(snap *snapshotv1.VolumeSnapshot, class *snapshotv1.VolumeSnapshotClass, from source) (*snapshotv1.VolumeSnapshotContent, error) {
	pv := from.spec.PersistentVolume
	content := &snapshotv1.VolumeSnapshotContent{}
	content.Name = contentName(snap.UID)
	content.Finalizers = []string{FinalizerContent}
	content.Annotations = map[string]string{AnnSourceVolumes: pv.Name}
	content.Spec = snapshotv1.VolumeSnapshotContentSpec{
		VolumeSnapshotRef: v1.ObjectReference{
			APIVersion: snapshotv1.SchemeGroupVersion.String(), Kind: "VolumeSnapshot", Namespace: snap.Namespace, Name: snap.Name, UID: snap.UID,
		},
		DeletionPolicy: class.DeletionPolicy, Driver: class.Driver, VolumeSnapshotClassName: &class.Name,
		Source: snapshotv1.VolumeSnapshotContentSource{VolumeHandle: &from.handle}, SourceVolumeMode: modeOf(pv.Spec.VolumeMode),
	}
	return content, keepSecret(content, snap, class.Parameters)
}

func modeOf(mode *v1.PersistentVolumeMode) *v1.PersistentVolumeMode {
	if mode == nil {
		return new(v1.PersistentVolumeFilesystem)
	}
	return new(*mode)
}

// bindToContent binds a snapshot to the content that it names, which must name the snapshot too.
func (c *Controller) bindToContent(ctx context.Context, snap *snapshotv1.VolumeSnapshot) error {
	content, ok := c.seen.contents.Get(objects.Named(*snap.Spec.Source.VolumeSnapshotContentName))
	switch {
	case !ok:
		return c.snapshotWaits(ctx, snap, "SnapshotContentMissing", fmt.Errorf(
			"content %q does not exist: create it", *snap.Spec.Source.VolumeSnapshotContentName))
	case content.Spec.Source.SnapshotHandle == nil:
		return c.snapshotWaits(ctx, snap, "SnapshotContentMismatch", fmt.Errorf(
			"content %q is one that is made of a volume: name one that has a snapshotHandle", content.Name))
	case !names(content.Spec.VolumeSnapshotRef, snap):
		ref := content.Spec.VolumeSnapshotRef
		return c.snapshotWaits(ctx, snap, "SnapshotContentMisbound", fmt.Errorf(
			"content %q is for snapshot %q with UID %q: name another content", content.Name, nameIn(ref), ref.UID))
	case dies(content):
		return c.snapshotWaits(ctx, snap, "SnapshotContentMissing", fmt.Errorf("content %q is being deleted", content.Name))
	}
	e := unchanged(content)
	if content.Spec.VolumeSnapshotRef.UID == "" {
		e = e.begin()
		e.object.Spec.VolumeSnapshotRef.UID = snap.UID
	}
	content, err := write(ctx, c.store, c.seen.contents, e.protect(FinalizerContent).unmark(AnnBeingDeleted))
	if err != nil {
		return err
	}
	return c.bind(ctx, snap, content)
}

// bind writes into a snapshot which content it has.
func (c *Controller) bind(ctx context.Context, snap *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent) error {
	e := unchanged(snap).begin()
	e.object.Status = snapshotStatus(snap, content)
	_, err := write(ctx, c.store, c.seen.snapshots, e)
	return err
}

// snapshotStatus returns the status of a snapshot, which is that of its content.
func snapshotStatus(snap *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent) *snapshotv1.VolumeSnapshotStatus {
	status := &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: &content.Name, ReadyToUse: new(isReady(content))}
	if owner := groupOwner(snap).Name; owner != "" {
		status.VolumeGroupSnapshotName = &owner
	}
	if from := content.Status; from != nil {
		if from.CreationTime != nil {
			status.CreationTime = new(metav1.NewTime(time.Unix(0, *from.CreationTime).Truncate(time.Second)))
		}
		if from.RestoreSize != nil {
			status.RestoreSize = resource.NewQuantity(*from.RestoreSize, resource.BinarySI)
		}
		status.Error = from.Error.DeepCopy()
	}
	return status
}

// followContent keeps the status of a snapshot that of its content.
func (c *Controller) followContent(ctx context.Context, snap *snapshotv1.VolumeSnapshot) error {
	content, ok := c.seen.contents.Get(objects.Named(boundTo(snap)))
	if !ok {
		var err error
		content, err = store.Get[*snapshotv1.VolumeSnapshotContent](ctx, c.store, "", boundTo(snap))
		if errors.Is(err, store.ErrNotFound) {
			return c.snapshotWaits(ctx, snap, "SnapshotContentMissing", fmt.Errorf("content %q is gone: its snapshot is lost", boundTo(snap)))
		}
		if err != nil {
			return err
		}
	}
	if !isBoundTo(content.Spec.VolumeSnapshotRef, snap) {
		return c.snapshotWaits(ctx, snap, "SnapshotMisbound", fmt.Errorf("content %q is not that of this snapshot", content.Name))
	}
	status := snapshotStatus(snap, content)
	if apiequality.Semantic.DeepEqual(snap.Status, status) {
		return nil
	}
	e := unchanged(snap).begin()
	e.object.Status = status
	updated, err := write(ctx, c.store, c.seen.snapshots, e)
	if err != nil {
		return err
	}
	if status.CreationTime != nil && snap.Status.CreationTime == nil {
		c.event(updated, v1.EventTypeNormal, "SnapshotCreated", fmt.Errorf("the snapshot was made"))
	}
	if *status.ReadyToUse && !deref(snap.Status.ReadyToUse) {
		c.event(updated, v1.EventTypeNormal, "SnapshotReady", fmt.Errorf("the snapshot is ready to use"))
	}
	return nil
}

// snapshotDies lets a snapshot go that is being deleted: after its group, after the claims that are restored from it, and after its
// content, unless that is to be kept.
func (c *Controller) snapshotDies(ctx context.Context, snap *snapshotv1.VolumeSnapshot) error {
	if !has(snap, FinalizerBound) && !has(snap, FinalizerAsSource) && !has(snap, FinalizerInGroup) {
		return nil
	}
	used, err := c.userOf(ctx, snap)
	if err != nil {
		return err
	}
	if used.by != nil {
		c.event(snap, v1.EventTypeWarning, "SnapshotDeletePending", used.by)
		return used.then
	}
	content, err := store.Get[*snapshotv1.VolumeSnapshotContent](ctx, c.store, "", contentNamed(snap))
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if err == nil && isBoundTo(content.Spec.VolumeSnapshotRef, snap) {
		kept, err := c.letContentGo(ctx, content)
		if err != nil || !kept {
			return err
		}
	}
	_, err = write(ctx, c.store, c.seen.snapshots, unchanged(snap).release(FinalizerBound, FinalizerAsSource, FinalizerInGroup))
	return ignoreGone(err)
}

// letContentGo deletes the content of a snapshot that is being deleted, unless it is to be kept, and reports whether it is kept.
func (c *Controller) letContentGo(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) (kept bool, err error) {
	content, err = write(ctx, c.store, c.seen.contents, unchanged(content).mark(AnnBeingDeleted))
	if err != nil {
		return false, err
	}
	if content.Spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete {
		return true, nil
	}
	if !dies(content) {
		err := store.Delete(ctx, c.store, content)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return false, err
		}
	}
	return false, work.AwaitChange(c.seen.contents, content)
}

// use says why a snapshot that is being deleted has to stay. Its zero value says that nothing uses it.
type use struct {
	by   error
	then error // ends the look: nil when an event will report the end of the use
}

// userOf returns whether a snapshot that is being deleted is that of a group, or a claim is restored from it. It reads the store.
func (c *Controller) userOf(ctx context.Context, snap *snapshotv1.VolumeSnapshot) (use, error) {
	if owner := groupOwner(snap); owner.Name != "" && has(snap, FinalizerInGroup) {
		group, err := store.Get[*groupv1.VolumeGroupSnapshot](ctx, c.store, snap.Namespace, owner.Name)
		if err == nil && group.UID == owner.UID && !dies(group) {
			return use{fmt.Errorf("the snapshot is one of group %q: delete the group", owner.Name), work.AwaitChange(c.seen.groups, group)}, nil
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return use{}, err
		}
	}
	claims, _, err := store.ListOf[*v1.PersistentVolumeClaim](ctx, c.store, snap.Namespace)
	for _, claim := range claims {
		if restores(claim, snap.Name) {
			return use{
				fmt.Errorf("claim %q is restored from the snapshot, which stays until the claim is bound or deleted", claim.Name),
				work.AwaitChange(c.seen.claims, claim),
			}, nil
		}
	}
	return use{}, err
}

func ignoreGone(err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}
