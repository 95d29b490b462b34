package attachdetach

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// AnnUniqueVolumeName is the annotation of a VolumeAttachment of this controller that holds the unique name of its volume. One
// without it is somebody else's and is left alone.
const AnnUniqueVolumeName = "volumekit.io/unique-volume-name"

// metadataDevicePath is the key of the device's path in the metadata of a VolumeAttachment.
const metadataDevicePath = "devicePath"

// attachmentRecords is the operationexecutor.Journal of a controller: for each volume that is, or may be, attached to a node
// there is a VolumeAttachment object. Make it with newAttachmentRecords.
type attachmentRecords struct {
	store store.Store
	leftovers
}

var _ operationexecutor.Journal = (*attachmentRecords)(nil)

func newAttachmentRecords(s store.Store) *attachmentRecords {
	return &attachmentRecords{store: s, leftovers: newLeftovers()}
}

// recordName returns the name of the VolumeAttachment of a volume on a node.
func recordName(volumeName v1.UniqueVolumeName, node types.NodeName) string {
	sum := sha256.Sum256([]byte(string(volumeName) + "\x00" + string(node)))
	return "volumekit-" + hex.EncodeToString(sum[:20])
}

// Intend implements operationexecutor.Journal.
func (r *attachmentRecords) Intend(ctx context.Context, intent operationexecutor.Intent) error {
	a := attachment{intent.VolumeName, intent.NodeName}
	if err := r.wanted(ctx, a); err != nil {
		return err
	}
	object, err := r.object(ctx, intent)
	if err == nil && intent.Kind == operationexecutor.OpAttach && !object.Status.Attached {
		err = r.checkKept(ctx, intent)
	}
	var unsure *unsureError
	if errors.As(err, &unsure) {
		r.leave(a) // It may have been made.
	}
	return err
}

// checkKept refuses to attach a volume that is about to be reclaimed. Who reclaims one writes that before looking for attachments, and
// who attaches one writes the attachment before looking for that: so one of them sees the other, however old what is known is.
func (r *attachmentRecords) checkKept(ctx context.Context, intent operationexecutor.Intent) error {
	if intent.Spec == nil || intent.Spec.PersistentVolume == nil {
		return nil
	}
	wanted := intent.Spec.PersistentVolume
	now, err := store.Get[*v1.PersistentVolume](ctx, r.store, "", wanted.Name)
	switch {
	case err != nil:
		return &unsureError{fmt.Errorf("whether volume %q is kept is not known: %w", wanted.Name, err)}
	case now.Status.Phase == v1.VolumeReleased, now.Status.Phase == v1.VolumeFailed, !sameClaim(now, wanted):
		return &unsureError{fmt.Errorf("volume %q is %s and no longer of the claim for which it was to be attached: %w",
			wanted.Name, now.Status.Phase, store.ErrConflict)}
	}
	return nil
}

func sameClaim(a, b *v1.PersistentVolume) bool {
	if a.Spec.ClaimRef == nil || b.Spec.ClaimRef == nil {
		return a.Spec.ClaimRef == b.Spec.ClaimRef
	}
	return a.Spec.ClaimRef.UID == b.Spec.ClaimRef.UID
}

// Conclude implements operationexecutor.Journal.
func (r *attachmentRecords) Conclude(ctx context.Context, intent operationexecutor.Intent, end operationexecutor.IntentEnd) error {
	switch end {
	case operationexecutor.IntentForgotten:
		a := attachment{intent.VolumeName, intent.NodeName}
		err := r.forget(ctx, a)
		if err != nil {
			r.leave(a)
		}
		return err
	case operationexecutor.IntentDone:
		return r.done(ctx, intent)
	default:
		return nil // The object says that the volume may be there.
	}
}

// object returns the VolumeAttachment of an intent, and makes it when there is none.
func (r *attachmentRecords) object(ctx context.Context, intent operationexecutor.Intent) (*storagev1.VolumeAttachment, error) {
	name := recordName(intent.VolumeName, intent.NodeName)
	found, err := store.Get[*storagev1.VolumeAttachment](ctx, r.store, "", name)
	if err == nil && found.Annotations[AnnUniqueVolumeName] != string(intent.VolumeName) {
		return nil, fmt.Errorf("VolumeAttachment %q is not of volume %q: delete it: %w", name, intent.VolumeName, store.ErrAlreadyExists)
	}
	if err == nil || !errors.Is(err, store.ErrNotFound) {
		return found, err
	}
	made, err := store.Create(ctx, r.store, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{AnnUniqueVolumeName: string(intent.VolumeName)}},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: volume.DriverOfPluginName(intent.PluginName), NodeName: string(intent.NodeName), Source: sourceOf(intent),
		},
	})
	if err != nil {
		return nil, &unsureError{err}
	}
	return made, nil
}

// unsureError is that of an intent that was not begun, and of which a record may have been made.
type unsureError struct{ error }

func (e *unsureError) Unwrap() error { return e.error }

// sourceOf returns what a VolumeAttachment says of its volume. Of one that is inline in a pod, or not known, that is no more than
// the annotation says, in the form that Kubernetes takes, so that no option that may be secret is copied.
func sourceOf(intent operationexecutor.Intent) storagev1.VolumeAttachmentSource {
	if intent.Spec == nil || intent.Spec.PersistentVolume == nil {
		return storagev1.VolumeAttachmentSource{InlineVolumeSpec: &v1.PersistentVolumeSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: volume.DriverOfPluginName(intent.PluginName), VolumeHandle: string(intent.VolumeName),
			}},
		}}
	}
	name := intent.Spec.PersistentVolume.Name
	return storagev1.VolumeAttachmentSource{PersistentVolumeName: &name}
}

// done says in the object that the volume is attached.
func (r *attachmentRecords) done(ctx context.Context, intent operationexecutor.Intent) error {
	for ctx.Err() == nil {
		object, err := r.object(ctx, intent)
		if err != nil {
			return err
		}
		if object.Status.Attached && object.Status.AttachmentMetadata[metadataDevicePath] == intent.DevicePath {
			return nil
		}
		object.Status.Attached = true
		object.Status.AttachmentMetadata = map[string]string{metadataDevicePath: intent.DevicePath}
		if _, err = store.Update(ctx, r.store, object); !errors.Is(err, store.ErrConflict) {
			return err
		}
		pause(ctx, conflictPause)
	}
	return context.Cause(ctx)
}

func (r *attachmentRecords) forget(ctx context.Context, a attachment) error {
	key := store.Key{Kind: store.VolumeAttachments, Name: recordName(a.volume, a.node)}
	err := r.store.Delete(ctx, key, store.Preconditions{})
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// recorded returns what the objects say may be attached.
func (r *attachmentRecords) recorded(ctx context.Context) ([]operationexecutor.AttachedVolume, error) {
	objects, _, err := store.ListOf[*storagev1.VolumeAttachment](ctx, r.store, "")
	if err != nil {
		return nil, err
	}
	var found []operationexecutor.AttachedVolume
	for _, object := range objects {
		name := v1.UniqueVolumeName(object.Annotations[AnnUniqueVolumeName])
		pluginName, _, err := volume.SplitUniqueName(name)
		if err != nil || object.Name != recordName(name, types.NodeName(object.Spec.NodeName)) {
			continue // Somebody else's.
		}
		found = append(found, operationexecutor.AttachedVolume{
			VolumeName: name, NodeName: types.NodeName(object.Spec.NodeName), PluginName: pluginName, PluginIsAttachable: true,
			DevicePath: object.Status.AttachmentMetadata[metadataDevicePath],
		})
	}
	return found, nil
}
