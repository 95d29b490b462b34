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

// annUniqueVolumeName is the annotation of a VolumeAttachment of this controller that holds the unique name of its volume. One
// without it was made by others and is left alone; it counts as evidence that its volume may be attached to its node.
const annUniqueVolumeName = "volumekit.io/unique-volume-name"

// annNodeUID is the annotation of a VolumeAttachment of this controller that holds the UID of the node's object when the
// VolumeAttachment was made. A node object that was made again since says nothing of what the node used before.
const annNodeUID = "volumekit.io/node-uid"

// metadataDevicePath is the key of the device's path in the metadata of a VolumeAttachment.
const metadataDevicePath = "devicePath"

// attachmentRecords is the operationexecutor.Journal of a controller: for each volume that is, or may be, attached to a node
// there is a VolumeAttachment object. Make it with newAttachmentRecords.
type attachmentRecords struct {
	store store.Store
	// nodeUID returns the UID of a node that is there.
	nodeUID func(name types.NodeName) (types.UID, bool)
	leftovers
	// entering has a token for each intent that is being put on record.
	entering chan struct{}

	namesMu sync.Mutex // no call that waits is made under it
	// names are the objects that are, or may be, there.
	names map[attachment]recordRef
}

// recordRef is the object of an attachment. uid is empty when it is not known whether it was made.
type recordRef struct {
	name string
	uid  types.UID
	// begun is the object as the intent of an operation that goes on left it; nil when none does.
	begun *storagev1.VolumeAttachment
}

// maxIntents is how many intents are put on record at a time. Others wait, and hold nothing meanwhile: how operations end, and what
// nodes are told, does not wait behind thousands of them.
const maxIntents = 128

var _ operationexecutor.Journal = (*attachmentRecords)(nil)

func newAttachmentRecords(s store.Store, nodeUID func(name types.NodeName) (types.UID, bool)) *attachmentRecords {
	return &attachmentRecords{store: s, nodeUID: nodeUID, leftovers: newLeftovers(), entering: make(chan struct{}, maxIntents), names: map[attachment]recordRef{}}
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

// takeBegun returns the object of the operation that ends, which is not kept any longer; nil when it is not known.
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

func (r *attachmentRecords) unlearn(a attachment) {
	r.namesMu.Lock()
	defer r.namesMu.Unlock()
	delete(r.names, a)
}

// nameFor returns the name of the VolumeAttachment that an intent makes. A volume that one node alone may have has one name for
// all nodes, so that the store itself refuses a second node, whoever asks.
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
	if err := r.wanted(ctx, a); err != nil {
		r.leave(a)
		return err
	}
	object, err := r.enter(ctx, intent)
	var unsure *unsureError
	if errors.As(err, &unsure) {
		r.leave(a) // It may have been made.
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
			r.leave(a)
		}
		return err
	case operationexecutor.IntentDone:
		return r.done(ctx, intent, begun)
	default:
		return nil // The object says that the volume may be there.
	}
}

// object returns the VolumeAttachment of an intent, and makes it when there is none. For an exclusive volume that another node has
// on record the error is an operationexecutor.MultiAttachError.
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
			err = &unsureError{err} // An earlier creation, whose answer was lost, may have come late.
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

// make makes the VolumeAttachment of an intent. After an error that says that create has done nothing, nothing is remembered; after
// any other, that it may be there.
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

// done says in the object that the volume is attached. While no other program has written the object, that is one write.
func (r *attachmentRecords) done(ctx context.Context, intent operationexecutor.Intent, object *storagev1.VolumeAttachment) error {
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

// forget deletes the object of an attachment, and never that of another node that has its name by now.
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
			r.unlearn(a)
			return nil //nolint:nilerr // It is gone, or that of another node.
		}
		ref.uid = found.UID
	}
	err := r.store.Delete(ctx, store.Key{Kind: store.VolumeAttachments, Name: ref.name}, store.Preconditions{UID: ref.uid})
	if errors.Is(err, store.ErrConflict) {
		r.remember(a, recordRef{name: ref.name}) // It may be another object by now.
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	r.unlearn(a)
	return nil
}

// recordedAttachment is what a VolumeAttachment says. nodeUID is empty when it does not say that, and attached says that the call
// that attached the volume has succeeded.
type recordedAttachment struct {
	operationexecutor.AttachedVolume

	nodeUID  types.UID
	attached bool
}

// recorded returns what the objects say may be attached.
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
