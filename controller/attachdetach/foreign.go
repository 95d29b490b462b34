package attachdetach

import (
	"context"
	"fmt"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/workqueue"
	"github.com/volumekit/volumekit/volume"
)

// ForeignAttachmentError says that a VolumeAttachment which this controller did not make names a volume: it is, or may be,
// attached to the node that the object names, and is neither attached to another node nor detached from that one while the
// object is there. It matches volume.ErrInUse.
type ForeignAttachmentError struct {
	// VolumeName is the volume, NodeName the node that the object names.
	VolumeName v1.UniqueVolumeName
	NodeName   types.NodeName
	// Attachment is the name of the object, Attacher the program that it is meant for.
	Attachment, Attacher string
}

// Error names the volume, the node and the object.
func (e *ForeignAttachmentError) Error() string {
	return fmt.Sprintf("volume %q is, or may be, attached to node %q by VolumeAttachment %q of attacher %q, which was not made here: "+
		"delete the object once the volume is detached there", e.VolumeName, e.NodeName, e.Attachment, e.Attacher)
}

// Unwrap returns volume.ErrInUse.
func (e *ForeignAttachmentError) Unwrap() error { return volume.ErrInUse }

// foreignAttachments are the VolumeAttachments that this controller did not make, by the volumes that they name. Methods may be
// called from several goroutines at once.
type foreignAttachments struct {
	plugins *volume.VolumePluginMgr
	objects objects
	freed   func(name v1.UniqueVolumeName) // has the nodes looked at that have or want a volume
	dirty   *workqueue.Queue[string]       // the objects to be looked at, by their names

	mu sync.Mutex // no call that waits is made under it
	// byName has each such object with the volume that it names, and byVolume the names of the objects.
	byName   map[string]foreignAttachment
	byVolume map[v1.UniqueVolumeName]map[string]struct{}
}

type foreignAttachment struct {
	volume v1.UniqueVolumeName
	object *storagev1.VolumeAttachment
}

func newForeignAttachments(plugins *volume.VolumePluginMgr, o objects, freed func(name v1.UniqueVolumeName)) *foreignAttachments {
	return &foreignAttachments{
		plugins: plugins, objects: o, freed: freed, dirty: workqueue.New[string](),
		byName: map[string]foreignAttachment{}, byVolume: map[v1.UniqueVolumeName]map[string]struct{}{},
	}
}

// put notes which volume an object names.
func (f *foreignAttachments) put(object *storagev1.VolumeAttachment, name v1.UniqueVolumeName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop(object.Name)
	f.byName[object.Name] = foreignAttachment{name, object}
	if f.byVolume[name] == nil {
		f.byVolume[name] = map[string]struct{}{}
	}
	f.byVolume[name][object.Name] = struct{}{}
}

// remove forgets an object.
func (f *foreignAttachments) remove(objectName string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop(objectName)
}

// drop is remove; it needs f.mu.
func (f *foreignAttachments) drop(objectName string) {
	name := f.byName[objectName].volume
	delete(f.byName, objectName)
	delete(f.byVolume[name], objectName)
	if len(f.byVolume[name]) == 0 {
		delete(f.byVolume, name)
	}
}

// volumeOf returns the volume that an object names; empty when it is not known.
func (f *foreignAttachments) volumeOf(objectName string) v1.UniqueVolumeName {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byName[objectName].volume
}

// find returns an error for the first object, by name, that names the volume and a node that counts; nil when there is none.
func (f *foreignAttachments) find(name v1.UniqueVolumeName, counts func(node types.NodeName) bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var objects []string
	for objectName := range f.byVolume[name] {
		if counts(types.NodeName(f.byName[objectName].object.Spec.NodeName)) {
			objects = append(objects, objectName)
		}
	}
	if len(objects) == 0 {
		return nil
	}
	object := f.byName[slices.Min(objects)].object
	return &ForeignAttachmentError{
		VolumeName: name, NodeName: types.NodeName(object.Spec.NodeName), Attachment: object.Name, Attacher: object.Spec.Attacher,
	}
}

// attachedElsewhere returns an error when a foreign attachment has an exclusive volume on another node.
func (f *foreignAttachments) attachedElsewhere(a attachment, spec *volume.Spec) error {
	if volume.IsMultiAttachAllowed(spec) {
		return nil
	}
	return f.find(a.volume, func(node types.NodeName) bool { return node != a.node })
}

// attachedHere returns an error when a foreign attachment has the volume on the same node.
func (f *foreignAttachments) attachedHere(a attachment) error {
	return f.find(a.volume, func(node types.NodeName) bool { return node == a.node })
}

// changed has a VolumeAttachment looked at, unless this controller made it.
func (f *foreignAttachments) changed(seen *storagev1.VolumeAttachment) {
	if !isOwnRecord(seen) {
		f.dirty.Add(seen.Name)
	}
}

// volumeChanged has the foreign attachments looked at that name a PersistentVolume.
func (f *foreignAttachments) volumeChanged(pv *v1.PersistentVolume) {
	for _, object := range f.objects.attachmentsOf.Get(pv.Name) {
		f.changed(object)
	}
}

// run takes over what foreign attachments say, until ctx ends.
func (f *foreignAttachments) run(ctx context.Context) {
	for {
		objectName, ok := f.dirty.Get(ctx)
		if !ok {
			return
		}
		f.read(objectName)
	}
}

// read updates the state from one foreign attachment. One goroutine at a time calls it.
func (f *foreignAttachments) read(objectName string) {
	before := f.volumeOf(objectName)
	name := v1.UniqueVolumeName("")
	if object, there := f.objects.attachments.Get(types.NamespacedName{Name: objectName}); there && !isOwnRecord(object) {
		if name = f.volumeNamedBy(object); name == "" {
			name = before // What cannot be found out any more is not gone.
		}
		if name != "" {
			f.put(object, name)
		}
	}
	if name == "" {
		f.remove(objectName)
	}
	for _, changed := range []v1.UniqueVolumeName{before, name} {
		if changed != "" {
			f.freed(changed)
		}
	}
}

// isOwnRecord reports whether a VolumeAttachment is a record of this controller, or of an earlier one.
func isOwnRecord(object *storagev1.VolumeAttachment) bool {
	name := v1.UniqueVolumeName(object.Annotations[annUniqueVolumeName])
	_, _, err := volume.SplitUniqueName(name)
	return err == nil && (object.Name == recordName(name, anyNode) || object.Name == recordName(name, types.NodeName(object.Spec.NodeName)))
}

// volumeNamedBy returns the unique name of the volume that a VolumeAttachment names, of any attacher; empty when no
// plugin here knows the volume.
func (f *foreignAttachments) volumeNamedBy(object *storagev1.VolumeAttachment) v1.UniqueVolumeName {
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: object.Name}} // A volume without a name has no plugin.
	switch source := object.Spec.Source; {
	case source.PersistentVolumeName != nil:
		found, there := f.objects.volumes.Get(types.NamespacedName{Name: *source.PersistentVolumeName})
		if !there {
			return ""
		}
		pv = found
	case source.InlineVolumeSpec != nil:
		pv.Spec = *source.InlineVolumeSpec
	}
	name, err := f.plugins.UniqueVolumeName("", volume.NewSpecFromPersistentVolume(pv, false))
	if err != nil {
		return "" // It has no plugin here.
	}
	return name
}
