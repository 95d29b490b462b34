package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
)

// ErrReportedLater says that the reporter has accepted the list of volumes in use, but the node's status does not show it
// yet.
var ErrReportedLater = errors.New("the node's status lists the volumes in use later")

// conflicts bounds how often a write of the node's object is retried because another write came first.
const conflicts = 16

// Object is this node's object in the store. It reads the volumes that the object lists as attached, and writes the list of
// volumes in use.
type Object struct {
	store.NodeStatus
	name types.NodeName

	mu sync.Mutex
	// attached holds the volumes that the last seen status lists, with their devices; nil until a status was seen. It is
	// replaced as a whole, never changed in place.
	attached map[v1.UniqueVolumeName]string
}

var (
	_ operationexecutor.NodeReader      = (*Object)(nil)
	_ operationexecutor.NodeStatusCache = (*Object)(nil)
	_ Reporter                          = (*Object)(nil)
)

// LastVolumesAttached implements operationexecutor.NodeStatusCache.
func (o *Object) LastVolumesAttached(nodeName types.NodeName) (map[v1.UniqueVolumeName]string, bool) {
	if nodeName != o.name {
		return nil, false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.attached, o.attached != nil
}

// lookUp returns what the last seen status says about one volume.
func (o *Object) lookUp(name v1.UniqueVolumeName) (devicePath string, listed, seen bool) {
	attached, seen := o.LastVolumesAttached(o.name)
	devicePath, listed = attached[name]
	return devicePath, listed, seen
}

// replace keeps the attached volumes of a new status, and returns those that have changed.
func (o *Object) replace(attached []v1.AttachedVolume) []v1.UniqueVolumeName {
	next := store.DevicesOf(attached)
	o.mu.Lock()
	last := o.attached
	o.attached = next
	o.mu.Unlock()
	var changed []v1.UniqueVolumeName
	for name, path := range next {
		if before, ok := last[name]; !ok || before != path {
			changed = append(changed, name)
		}
	}
	for name := range last {
		if _, ok := next[name]; !ok {
			changed = append(changed, name)
		}
	}
	slices.Sort(changed)
	return changed
}

// ReportVolumesInUse implements Reporter: it writes the list into the node's object.
func (o *Object) ReportVolumesInUse(ctx context.Context, volumes []v1.UniqueVolumeName) error {
	var err error
	for range conflicts {
		if err = o.writeInUse(ctx, volumes); !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return err
}

// listed returns the volumes that the node's object lists as in use, whether this node or another writer has listed them.
func (o *Object) listed(ctx context.Context) ([]v1.UniqueVolumeName, error) {
	node, err := store.Get[*v1.Node](ctx, o.Store, "", string(o.name))
	if err != nil {
		return nil, fmt.Errorf("volumes in use of this node: %w", err)
	}
	return node.Status.VolumesInUse, nil
}

// writeInUse reads the node's object, and writes the list of volumes in use if it differs.
func (o *Object) writeInUse(ctx context.Context, volumes []v1.UniqueVolumeName) error {
	node, err := store.Get[*v1.Node](ctx, o.Store, "", string(o.name))
	if err != nil {
		return fmt.Errorf("status of this node: %w", err)
	}
	if slices.Equal(node.Status.VolumesInUse, volumes) {
		return o.sign(ctx, node)
	}
	node.Status.VolumesInUse = volumes
	if err := o.writeList(ctx, node); err != nil {
		return fmt.Errorf("status of this node: %w", err)
	}
	return nil // An empty list is signed when the node's object is seen with it.
}

// writeList writes a changed list. It signs a list that is not empty in the same write, or writes it unsigned if this node
// may write nothing but its status.
func (o *Object) writeList(ctx context.Context, node *v1.Node) error {
	if len(node.Status.VolumesInUse) == 0 || isSigned(node) {
		_, err := store.Update(ctx, o.Store, node)
		return err
	}
	signed := node.DeepCopy()
	metav1.SetMetaDataAnnotation(&signed.ObjectMeta, store.AnnVolumesInUseOf, signature(node))
	_, err := store.Update(ctx, o.Store, signed)
	if err == nil || errors.Is(err, store.ErrConflict) {
		return err
	}
	_, err = store.Update(ctx, o.Store, node) // This is a conflict if the first write changed the status before it failed.
	return err
}

// isSigned reports whether an annotation of the node's object confirms the list of volumes in use as this node's. For an
// empty list it holds the node's UID; otherwise it is empty, and thus never confirms an empty list. See
// [store.AnnVolumesInUseOf].
func isSigned(node *v1.Node) bool {
	of, signs := node.Annotations[store.AnnVolumesInUseOf]
	return signs && of == signature(node)
}

func signature(node *v1.Node) string {
	if len(node.Status.VolumesInUse) == 0 {
		return string(node.UID)
	}
	return ""
}

// sign confirms the present list as this node's. On an object without the annotation only a conflict is an error: a node that
// may write nothing but its status has reported all the same. A controller then waits for a list that is not empty, and trusts
// an empty list after that. With the annotation of another list every failure is an error, because no controller detaches
// anything until the signature is there ([store.LostVolumesInUse]).
func (o *Object) sign(ctx context.Context, node *v1.Node) error {
	if isSigned(node) {
		return nil
	}
	_, signs := node.Annotations[store.AnnVolumesInUseOf]
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, store.AnnVolumesInUseOf, signature(node))
	_, err := store.Update(ctx, o.Store, node)
	if err != nil && (signs || errors.Is(err, store.ErrConflict)) {
		return fmt.Errorf("signing the volumes in use: %w", err)
	}
	return nil
}
