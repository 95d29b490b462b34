package snapshot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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

func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

func has(obj metav1.Object, finalizer string) bool {
	return slices.Contains(obj.GetFinalizers(), finalizer)
}

func isBeingDeleted(obj metav1.Object) bool { return obj.GetDeletionTimestamp() != nil }

// handleOf returns the handle of the snapshot that a content stands for; "" while it is not known.
func handleOf(content *snapshotv1.VolumeSnapshotContent) string {
	if content.Status != nil && deref(content.Status.SnapshotHandle) != "" {
		return *content.Status.SnapshotHandle
	}
	return deref(content.Spec.Source.SnapshotHandle)
}

func isReady(content *snapshotv1.VolumeSnapshotContent) bool {
	return content.Status != nil && deref(content.Status.ReadyToUse) && deref(content.Status.SnapshotHandle) != ""
}

func groupHandleOf(content *groupv1.VolumeGroupSnapshotContent) string {
	if content.Status != nil && deref(content.Status.VolumeGroupSnapshotHandle) != "" {
		return *content.Status.VolumeGroupSnapshotHandle
	}
	if given := content.Spec.Source.GroupSnapshotHandles; given != nil {
		return given.VolumeGroupSnapshotHandle
	}
	return ""
}

// memberHandlesOf returns the handles of the snapshots of a group.
func memberHandlesOf(content *groupv1.VolumeGroupSnapshotContent) []string {
	if given := content.Spec.Source.GroupSnapshotHandles; given != nil {
		return slices.Clone(given.VolumeSnapshotHandles)
	}
	var handles []string
	if content.Status != nil {
		for _, info := range content.Status.VolumeSnapshotInfoList {
			handles = append(handles, info.SnapshotHandle)
		}
	}
	return handles
}

func isGroupReady(content *groupv1.VolumeGroupSnapshotContent) bool {
	return content.Status != nil && deref(content.Status.ReadyToUse) && deref(content.Status.VolumeGroupSnapshotHandle) != ""
}

// isBoundTo reports whether the reference of a content is to this very object.
func isBoundTo(ref v1.ObjectReference, obj store.Object) bool {
	return names(ref, obj) && ref.UID == obj.GetUID()
}

// names reports whether the reference of a content names an object, by its UID or without any.
func names(ref v1.ObjectReference, obj store.Object) bool {
	return ref.Namespace == obj.GetNamespace() && ref.Name == obj.GetName() && (ref.UID == "" || ref.UID == obj.GetUID())
}

func nameIn(ref v1.ObjectReference) types.NamespacedName {
	return types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
}

// edit is an object, changed or not.
type edit[T store.Object] struct {
	object  T
	changed bool
}

// unchanged returns the edit of obj that changes nothing.
func unchanged[T store.Object](obj T) edit[T] { return edit[T]{object: obj} }

// begin copies the object, unless it is a copy already.
func (e edit[T]) begin() edit[T] {
	if e.changed {
		return e
	}
	return edit[T]{e.object.DeepCopyObject().(T), true} //nolint:forcetypeassert // A copy is of the same type.
}

// protect adds finalizers.
func (e edit[T]) protect(finalizers ...string) edit[T] {
	for _, f := range finalizers {
		if !has(e.object, f) {
			e = e.begin()
			e.object.SetFinalizers(append(e.object.GetFinalizers(), f))
		}
	}
	return e
}

// release removes finalizers.
func (e edit[T]) release(finalizers ...string) edit[T] {
	for _, f := range finalizers {
		if has(e.object, f) {
			e = e.begin()
			e.object.SetFinalizers(slices.DeleteFunc(e.object.GetFinalizers(), func(other string) bool { return other == f }))
		}
	}
	return e
}

// mark adds an annotation.
func (e edit[T]) mark(key string) edit[T] {
	if _, there := e.object.GetAnnotations()[key]; there {
		return e
	}
	e = e.begin()
	annotations := e.object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[key] = yes
	e.object.SetAnnotations(annotations)
	return e
}

// unmark removes an annotation.
func (e edit[T]) unmark(key string) edit[T] {
	if _, there := e.object.GetAnnotations()[key]; there {
		e = e.begin()
		delete(e.object.GetAnnotations(), key)
	}
	return e
}

// write writes an edit that changes something, and puts the result into the mirror.
func write[T store.Object](ctx context.Context, s store.Store, m *store.Mirror[T], e edit[T]) (T, error) {
	if !e.changed {
		return e.object, nil
	}
	updated, err := store.Update(ctx, s, e.object)
	if err != nil {
		return e.object, err
	}
	if !isBeingDeleted(updated) || len(updated.GetFinalizers()) > 0 {
		m.Put(updated)
	}
	return updated, nil
}

// failure is where a status has whether a snapshot can be used, and why not.
type failure struct {
	ready **bool
	err   **snapshotv1.VolumeSnapshotError
}

func snapshotFailure(snap *snapshotv1.VolumeSnapshot) failure {
	if snap.Status == nil {
		snap.Status = &snapshotv1.VolumeSnapshotStatus{}
	}
	return failure{&snap.Status.ReadyToUse, &snap.Status.Error}
}

func contentFailure(content *snapshotv1.VolumeSnapshotContent) failure {
	if content.Status == nil {
		content.Status = &snapshotv1.VolumeSnapshotContentStatus{}
	}
	return failure{&content.Status.ReadyToUse, &content.Status.Error}
}

func groupFailure(group *groupv1.VolumeGroupSnapshot) failure {
	if group.Status == nil {
		group.Status = &groupv1.VolumeGroupSnapshotStatus{}
	}
	return failure{&group.Status.ReadyToUse, &group.Status.Error}
}

func groupContentFailure(content *groupv1.VolumeGroupSnapshotContent) failure {
	if content.Status == nil {
		content.Status = &groupv1.VolumeGroupSnapshotContentStatus{}
	}
	return failure{&content.Status.ReadyToUse, &content.Status.Error}
}

// failures records why objects of one kind cannot be used, in their statuses and in events.
type failures[T store.Object] struct {
	store  store.Store
	mirror *store.Mirror[T]
	events recorder
	kind   string // of the objects, in errors
	in     func(T) failure
}

// wait records why an object cannot be used. A change of what it waits for wakes it. A reason that the status has already is neither
// written nor recorded again.
func (f failures[T]) wait(ctx context.Context, obj T, reason string, why error) error {
	e := unchanged(obj).begin()
	status := f.in(e.object)
	*status.ready, *status.err = new(false), newError(*status.err, why.Error())
	if apiequality.Semantic.DeepEqual(obj, e.object) {
		return nil
	}
	if _, err := write(ctx, f.store, f.mirror, e); err != nil {
		return err
	}
	f.events.record(obj, v1.EventTypeWarning, reason, why)
	return nil
}

// fail is wait for an object that is tried again after a back-off: it returns the error of the call.
func (f failures[T]) fail(ctx context.Context, obj T, reason string, why error) error {
	failed := &work.CallError{UID: obj.GetUID(), Err: fmt.Errorf("%s %q: %w", f.kind, obj.GetName(), why)}
	if ctx.Err() != nil {
		return failed
	}
	if err := f.wait(ctx, obj, reason, why); err != nil {
		failed.Err = errors.Join(failed.Err, err)
	}
	return failed
}

// newError returns an error as it stands in a status, which keeps the time of an older one that says the same.
func newError(old *snapshotv1.VolumeSnapshotError, message string) *snapshotv1.VolumeSnapshotError {
	if old != nil && deref(old.Message) == message {
		return old
	}
	return &snapshotv1.VolumeSnapshotError{Time: new(metav1.Now()), Message: &message}
}

// snapshotNamed returns the name of the VolumeSnapshot that a claim names as its data source; "" for none.
func snapshotNamed(claim *v1.PersistentVolumeClaim) string {
	const kind = "VolumeSnapshot"
	if from := claim.Spec.DataSourceRef; from != nil && from.Kind == kind && objects.Deref(from.APIGroup) == snapshotv1.GroupName {
		if from.Namespace != nil && *from.Namespace != claim.Namespace {
			return ""
		}
		return from.Name
	}
	if from := claim.Spec.DataSource; from != nil && from.Kind == kind && objects.Deref(from.APIGroup) == snapshotv1.GroupName {
		return from.Name
	}
	return ""
}

// timeOf returns a time in the nanoseconds since 1970 that a content has; nil is the zero time.
func timeOf(nanoseconds *int64) time.Time {
	if nanoseconds == nil {
		return time.Time{}
	}
	return time.Unix(0, *nanoseconds)
}

// object names an object in errors of calls.
func object(kind, name string) string { return fmt.Sprintf("%s %q", kind, name) }
