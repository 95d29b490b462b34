package attachdetach

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// annUniqueVolumeName is the annotation of a VolumeAttachment of this controller that holds the unique name of its volume.
// A VolumeAttachment without it is foreign: this controller does not change it, and takes it as evidence that the volume
// may be attached to the node.
const annUniqueVolumeName = "volumekit.io/unique-volume-name"

// annNodeUID is the annotation of a VolumeAttachment of this controller that holds the UID of the node's object when the
// VolumeAttachment was made. If the node's object was made again since, it says nothing about the use by the earlier node.
const annNodeUID = "volumekit.io/node-uid"

// metadataDevicePath is the key of the device's path in the metadata of a VolumeAttachment.
const metadataDevicePath = "devicePath"

// attachmentRecords is the operationexecutor.Journal of a controller. Each volume that is, or may be, attached to a node
// has a VolumeAttachment object. Make it with newAttachmentRecords.
type attachmentRecords struct {
	store store.Store
	// nodeUID returns the UID of a node, and false if the node's object is missing.
	nodeUID func(name types.NodeName) (types.UID, bool)
	obsoleteRecords
	// entering has a token for each intent that is being recorded.
	entering chan struct{}

	namesMu sync.Mutex // no call that waits is made under it
	// names are the VolumeAttachments that exist, or may exist.
	names map[attachment]recordRef
}

// recordRef identifies the VolumeAttachment of an attachment. uid is empty if it is not known whether the object was made.
type recordRef struct {
	name string
	uid  types.UID
	// begun is the object as the intent of a running operation wrote it; nil without such an operation.
	begun *storagev1.VolumeAttachment
}

// maxIntents is how many intents are recorded at once. Other intents wait and hold nothing meanwhile, so the ends of
// operations and the updates of node status do not wait behind thousands of intents.
const maxIntents = 128

var _ operationexecutor.Journal = (*attachmentRecords)(nil)

func newAttachmentRecords(s store.Store, nodeUID func(name types.NodeName) (types.UID, bool)) *attachmentRecords {
	return &attachmentRecords{store: s, nodeUID: nodeUID, obsoleteRecords: newObsoleteRecords(), entering: make(chan struct{}, maxIntents), names: map[attachment]recordRef{}}
}

func (r *attachmentRecords) remember(a attachment, ref recordRef) {
	r.namesMu.Lock()
	defer r.namesMu.Unlock()
	r.names[a] = ref
}

func (r *attachmentRecords) known(a attachment) (recordRef, bool) {
	r.namesMu.Lock()
	defer r.namesMu.Unlock()
	ref, ok := r.names[a]
	return ref, ok
}

// takeBegun returns the object that the ending operation's intent wrote, and forgets it. It returns nil if there is none.
func (r *attachmentRecords) takeBegun(a attachment) *storagev1.VolumeAttachment {
	r.namesMu.Lock()
	defer r.namesMu.Unlock()
	ref, known := r.names[a]
	if !known || ref.begun == nil {
		return nil
	}
	begun := ref.begun
	ref.begun = nil
	r.names[a] = ref
	return begun
}

func (r *attachmentRecords) forgetName(a attachment) {
	r.namesMu.Lock()
	defer r.namesMu.Unlock()
	delete(r.names, a)
}

// nameFor returns the name of the VolumeAttachment for an intent. A volume that only one node may have has one name for all
// nodes, so the store itself refuses a second node.
func nameFor(intent operationexecutor.Intent) string {
	if intent.Kind == operationexecutor.OpAttach && intent.Spec != nil && !volume.IsMultiAttachAllowed(intent.Spec) {
		return recordName(intent.VolumeName, anyNode)
	}
	return recordName(intent.VolumeName, intent.NodeName)
}

// anyNode stands for the node in the name of the VolumeAttachment of an exclusive volume.
const anyNode types.NodeName = ""

// recordName returns the name of the VolumeAttachment of a volume on a node.
func recordName(volumeName v1.UniqueVolumeName, node types.NodeName) string {
	sum := sha256.Sum256([]byte(string(volumeName) + "\x00" + string(node)))
	return "volumekit-" + hex.EncodeToString(sum[:20])
}

// Intend implements operationexecutor.Journal.
func (r *attachmentRecords) Intend(ctx context.Context, intent operationexecutor.Intent) error {
	a := attachment{intent.VolumeName, intent.NodeName}
	select {
	case r.entering <- struct{}{}:
		defer func() { <-r.entering }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := r.keep(ctx, a); err != nil {
		r.markObsolete(a)
		return err
	}
	object, err := r.recordIntent(ctx, intent)
	var unsure *unsureError
	if errors.As(err, &unsure) {
		r.markObsolete(a) // The record may exist.
	}
	if err == nil && intent.Kind == operationexecutor.OpAttach {
		r.remember(a, recordRef{object.Name, object.UID, object})
	}
	return err
}

// Conclude implements operationexecutor.Journal.
func (r *attachmentRecords) Conclude(ctx context.Context, intent operationexecutor.Intent, end operationexecutor.IntentEnd) error {
	a := attachment{intent.VolumeName, intent.NodeName}
	begun := r.takeBegun(a)
	switch end {
	case operationexecutor.IntentForgotten:
		err := r.forget(ctx, a)
		if err != nil {
			r.markObsolete(a)
		}
		return err
	case operationexecutor.IntentDone:
		return r.recordAttached(ctx, intent, begun)
	default:
		return nil // The existing object is the record of an uncertain attachment.
	}
}

// object returns the VolumeAttachment of an intent, and makes it if it is missing. If an exclusive volume is on record for
// another node, the error is an operationexecutor.MultiAttachError.
func (r *attachmentRecords) object(ctx context.Context, intent operationexecutor.Intent) (*storagev1.VolumeAttachment, error) {
	a, name := attachment{intent.VolumeName, intent.NodeName}, nameFor(intent)
	create := func(object *storagev1.VolumeAttachment) (*storagev1.VolumeAttachment, error) {
		return store.Create(ctx, r.store, object)
	}
	if ref, known := r.known(a); known {
		name = ref.name
	} else if made, err := r.make(intent, create); !errors.Is(err, store.ErrAlreadyExists) {
		return made, err
	}
	found, err := store.Get[*storagev1.VolumeAttachment](ctx, r.store, "", name)
	switch {
	case errors.Is(err, store.ErrNotFound):
		made, err := r.make(intent, create)
		if errors.Is(err, store.ErrAlreadyExists) {
			err = &unsureError{err} // An earlier create, whose answer was lost, may have succeeded late.
		}
		return made, err
	case err != nil:
		return nil, err
	case found.Annotations[annUniqueVolumeName] != string(intent.VolumeName):
		return nil, fmt.Errorf("VolumeAttachment %q is not of volume %q: delete it: %w", name, intent.VolumeName, store.ErrAlreadyExists)
	case found.Spec.NodeName != string(intent.NodeName):
		return nil, fmt.Errorf("VolumeAttachment %q: %w", name, &operationexecutor.MultiAttachError{Nodes: []types.NodeName{types.NodeName(found.Spec.NodeName)}})
	}
	r.remember(a, recordRef{name: name, uid: found.UID})
	return found, nil
}

// make makes the VolumeAttachment of an intent. If the error says that create did nothing, make remembers nothing. After
// any other error it remembers that the object may exist.
func (r *attachmentRecords) make(intent operationexecutor.Intent, create func(*storagev1.VolumeAttachment) (*storagev1.VolumeAttachment, error)) (*storagev1.VolumeAttachment, error) {
	a, name := attachment{intent.VolumeName, intent.NodeName}, nameFor(intent)
	annotations := map[string]string{annUniqueVolumeName: string(intent.VolumeName)}
	if uid, there := r.nodeUID(intent.NodeName); there {
		annotations[annNodeUID] = string(uid)
	}
	made, err := create(&storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: volume.DriverOfPluginName(intent.PluginName), NodeName: string(intent.NodeName), Source: sourceOf(intent),
		},
	})
	switch {
	case errors.Is(err, store.ErrAlreadyExists), errors.Is(err, store.ErrConflict):
		return nil, err
	case err != nil:
		r.remember(a, recordRef{name: name})
		return nil, &unsureError{err}
	}
	r.remember(a, recordRef{name: name, uid: made.UID})
	return made, nil
}

// unsureError says that an intent failed but its record may exist.
type unsureError struct{ error }

func (e *unsureError) Unwrap() error { return e.error }

// sourceOf returns the source of a VolumeAttachment. For a volume that is inline in a pod, or unknown, it holds only the
// unique name, in the form of Kubernetes. So no option is copied, because an option may be a secret.
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

// recordAttached records in the object that the volume is attached. If no other program has changed the object, this takes one write.
func (r *attachmentRecords) recordAttached(ctx context.Context, intent operationexecutor.Intent, object *storagev1.VolumeAttachment) error {
	for ctx.Err() == nil {
		if object == nil {
			var err error
			if object, err = r.object(ctx, intent); err != nil {
				return err
			}
		}
		if object.Status.Attached && object.Status.AttachmentMetadata[metadataDevicePath] == intent.DevicePath {
			return nil
		}
		object.Status.Attached = true
		object.Status.AttachmentMetadata = map[string]string{metadataDevicePath: intent.DevicePath}
		_, err := store.Update(ctx, r.store, object)
		if !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		object = nil
		pause(ctx, conflictPause)
	}
	return context.Cause(ctx)
}

// forget deletes the object of an attachment. It never deletes the object of another node that has that name by now.
func (r *attachmentRecords) forget(ctx context.Context, a attachment) error {
	ref, known := r.known(a)
	if !known {
		return nil // It was never made.
	}
	if ref.uid == "" {
		found, err := store.Get[*storagev1.VolumeAttachment](ctx, r.store, "", ref.name)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		if err != nil || found.Spec.NodeName != string(a.node) {
			r.forgetName(a)
			return nil //nolint:nilerr // The object is gone, or is another node's.
		}
		ref.uid = found.UID
	}
	err := r.store.Delete(ctx, store.Key{Kind: store.VolumeAttachments, Name: ref.name}, store.Preconditions{UID: ref.uid})
	if errors.Is(err, store.ErrConflict) {
		r.remember(a, recordRef{name: ref.name}) // The name may belong to another object by now.
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	r.forgetName(a)
	return nil
}

// recordedAttachment is the content of a VolumeAttachment. nodeUID is empty if the object has none. attached says that the
// call that attached the volume succeeded.
type recordedAttachment struct {
	operationexecutor.AttachedVolume

	nodeUID  types.UID
	attached bool
}

// recorded returns the attachments for which this controller has VolumeAttachments.
func (r *attachmentRecords) recorded(ctx context.Context) ([]recordedAttachment, error) {
	objects, _, err := store.ListOf[*storagev1.VolumeAttachment](ctx, r.store, "")
	if err != nil {
		return nil, err
	}
	var found []recordedAttachment
	for _, object := range objects {
		name := v1.UniqueVolumeName(object.Annotations[annUniqueVolumeName])
		if !isOwnRecord(object) {
			continue
		}
		pluginName, _, _ := volume.SplitUniqueName(name)
		r.remember(attachment{name, types.NodeName(object.Spec.NodeName)}, recordRef{name: object.Name, uid: object.UID})
		found = append(found, recordedAttachment{nodeUID: types.UID(object.Annotations[annNodeUID]), attached: object.Status.Attached, AttachedVolume: operationexecutor.AttachedVolume{
			VolumeName: name, NodeName: types.NodeName(object.Spec.NodeName), PluginName: pluginName, PluginIsAttachable: true,
			DevicePath: object.Status.AttachmentMetadata[metadataDevicePath],
		}})
	}
	return found, nil
}
