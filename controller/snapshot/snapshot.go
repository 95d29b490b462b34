package snapshot

import (
	"context"
	"errors"
	"fmt"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/store"
)

// snapshotSync syncs snapshots: it binds them to contents and releases them.
type snapshotSync struct {
	store    store.Store
	mirrors  *mirrors
	queue    *work.Queue
	events   recorder
	sources  *sources
	failures failures[*snapshotv1.VolumeSnapshot]
	claims   *protection
}

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

// sync does the next thing for one snapshot.
func (c *snapshotSync) sync(ctx context.Context, name types.NamespacedName) error {
	snap, ok := c.mirrors.snapshots.Get(name)
	if !ok {
		return nil
	}
	if isBeingDeleted(snap) {
		return c.syncDeleted(ctx, snap)
	}
	from := snap.Spec.Source
	if (deref(from.PersistentVolumeClaimName) == "") == (deref(from.VolumeSnapshotContentName) == "") {
		return c.failures.wait(ctx, snap, "SnapshotValidationError",
			errors.New("name either a claim or a content as the source of the snapshot, and not both"))
	}
	snap, err := write(ctx, c.store, c.mirrors.snapshots, unchanged(snap).protect(FinalizerBound, FinalizerAsSource))
	if err != nil {
		return err
	}
	switch {
	case boundTo(snap) != "":
		return c.followContent(ctx, snap)
	case deref(from.VolumeSnapshotContentName) != "":
		return c.bindToContent(ctx, snap)
	}
	return c.createContent(ctx, snap)
}

// createContent creates the content of a snapshot of a claim, or finds the one that was created before.
func (c *snapshotSync) createContent(ctx context.Context, snap *snapshotv1.VolumeSnapshot) error {
	content, err := store.Get[*snapshotv1.VolumeSnapshotContent](ctx, c.store, "", contentName(snap.UID))
	switch {
	case err == nil && (content.Spec.Source.VolumeHandle == nil || !isBoundTo(content.Spec.VolumeSnapshotRef, snap)):
		return c.failures.wait(ctx, snap, "SnapshotContentMisbound", fmt.Errorf(
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
		return errors.Join(c.failures.wait(ctx, snap, "SnapshotContentCreationFailed", why), retry(snap.UID, why))
	}
	class, why := c.classOf(snap, from.plugin.GetPluginName())
	if why != nil {
		return c.failures.wait(ctx, snap, "SnapshotContentCreationFailed", why)
	}
	if snap.Spec.VolumeSnapshotClassName == nil {
		e := unchanged(snap).begin()
		e.object.Spec.VolumeSnapshotClassName = &class.Name
		if snap, err = write(ctx, c.store, c.mirrors.snapshots, e); err != nil {
			return err
		}
	}
	wanted, why := newContent(snap, class, from)
	if why != nil {
		return c.failures.wait(ctx, snap, "SnapshotContentCreationFailed", why)
	}
	release, err := c.claims.protectClaims(ctx, claim)
	if err != nil {
		return err
	}
	defer release()
	content, err = store.Create(ctx, c.store, wanted)
	if err != nil {
		return err // One that is there is found the next time.
	}
	c.mirrors.contents.Put(content)
	c.events.record(snap, v1.EventTypeNormal, "CreatingSnapshot", fmt.Errorf("a snapshot of claim %q is to be made", claim.Name))
	return c.bind(ctx, snap, content)
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
func (c *snapshotSync) bindToContent(ctx context.Context, snap *snapshotv1.VolumeSnapshot) error {
	content, ok := c.mirrors.contents.Get(objects.Named(*snap.Spec.Source.VolumeSnapshotContentName))
	switch {
	case !ok:
		return c.failures.wait(ctx, snap, "SnapshotContentMissing", fmt.Errorf(
			"content %q does not exist: create it", *snap.Spec.Source.VolumeSnapshotContentName))
	case content.Spec.Source.SnapshotHandle == nil:
		return c.failures.wait(ctx, snap, "SnapshotContentMismatch", fmt.Errorf(
			"content %q is one that is made of a volume: name one that has a snapshotHandle", content.Name))
	case !names(content.Spec.VolumeSnapshotRef, snap):
		ref := content.Spec.VolumeSnapshotRef
		return c.failures.wait(ctx, snap, "SnapshotContentMisbound", fmt.Errorf(
			"content %q is for snapshot %q with UID %q: name another content", content.Name, nameIn(ref), ref.UID))
	case isBeingDeleted(content):
		return c.failures.wait(ctx, snap, "SnapshotContentMissing", fmt.Errorf("content %q is being deleted", content.Name))
	}
	e := unchanged(content)
	if content.Spec.VolumeSnapshotRef.UID == "" {
		e = e.begin()
		e.object.Spec.VolumeSnapshotRef.UID = snap.UID
	}
	content, err := write(ctx, c.store, c.mirrors.contents, e.protect(FinalizerContent).unmark(AnnBeingDeleted))
	if err != nil {
		return err
	}
	return c.bind(ctx, snap, content)
}

// bind writes into a snapshot which content it has.
func (c *snapshotSync) bind(ctx context.Context, snap *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent) error {
	e := unchanged(snap).begin()
	e.object.Status = snapshotStatus(snap, content)
	_, err := write(ctx, c.store, c.mirrors.snapshots, e)
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
func (c *snapshotSync) followContent(ctx context.Context, snap *snapshotv1.VolumeSnapshot) error {
	content, ok := c.mirrors.contents.Get(objects.Named(boundTo(snap)))
	if !ok {
		var err error
		content, err = store.Get[*snapshotv1.VolumeSnapshotContent](ctx, c.store, "", boundTo(snap))
		if errors.Is(err, store.ErrNotFound) {
			return c.failures.wait(ctx, snap, "SnapshotContentMissing", fmt.Errorf("content %q is gone: its snapshot is lost", boundTo(snap)))
		}
		if err != nil {
			return err
		}
	}
	if !isBoundTo(content.Spec.VolumeSnapshotRef, snap) {
		return c.failures.wait(ctx, snap, "SnapshotMisbound", fmt.Errorf("content %q is not that of this snapshot", content.Name))
	}
	status := snapshotStatus(snap, content)
	if apiequality.Semantic.DeepEqual(snap.Status, status) {
		return nil
	}
	e := unchanged(snap).begin()
	e.object.Status = status
	updated, err := write(ctx, c.store, c.mirrors.snapshots, e)
	if err != nil {
		return err
	}
	if status.CreationTime != nil && snap.Status.CreationTime == nil {
		c.events.record(updated, v1.EventTypeNormal, "SnapshotCreated", fmt.Errorf("the snapshot was made"))
	}
	if *status.ReadyToUse && !deref(snap.Status.ReadyToUse) {
		c.events.record(updated, v1.EventTypeNormal, "SnapshotReady", fmt.Errorf("the snapshot is ready to use"))
	}
	return nil
}
