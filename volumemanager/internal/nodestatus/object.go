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

// ErrReportedLater says that the list of volumes in use was taken and is not in the node's status yet.
var ErrReportedLater = errors.New("the node's status lists the volumes in use later")

// conflicts bounds how often a node's object is read again because it was written in between.
const conflicts = 16

// Object is this node's object in the store: what it lists as attached, and what it is made to list as in use.
type Object struct {
	store.NodeStatus
	name types.NodeName

	mu sync.Mutex
	// attached are the volumes that the status listed last, with their devices; nil until one was seen. It is replaced,
	// never changed.
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

// lookUp returns what the status that was seen last says of one volume.
func (o *Object) lookUp(name v1.UniqueVolumeName) (devicePath string, listed, seen bool) {
	attached, seen := o.LastVolumesAttached(o.name)
	devicePath, listed = attached[name]
	return devicePath, listed, seen
}

// replace takes over what a status lists, and returns the volumes of which it says something else than the one before.
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

// listed returns what the node's object lists as in use, by whomever it was written.
func (o *Object) listed(ctx context.Context) ([]v1.UniqueVolumeName, error) {
	node, err := store.Get[*v1.Node](ctx, o.Store, "", string(o.name))
	if err != nil {
		return nil, fmt.Errorf("volumes in use of this node: %w", err)
	}
	return node.Status.VolumesInUse, nil
}

// writeInUse reads the node's object, and writes it unless it has the list.
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

// writeList writes a list that has changed. One that is not empty is signed with it, unless this node may not write more than its
// status.
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
	_, err = store.Update(ctx, o.Store, node) // A conflict when the status was written before the error.
	return err
}

// isSigned reports whether the node's object says that the list of volumes in use is this node's: of an empty list that it is, of
// another one that an empty list would not be; see [store.AnnVolumesInUseOf].
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

// sign says of the list that is there that it is this node's. Only a conflict is an error: a node that may not write more than its
// status has reported all the same, and a controller then waits for a list that is not empty, and believes one that is emptied.
func (o *Object) sign(ctx context.Context, node *v1.Node) error {
	if isSigned(node) {
		return nil
	}
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, store.AnnVolumesInUseOf, signature(node))
	if _, err := store.Update(ctx, o.Store, node); errors.Is(err, store.ErrConflict) {
		return err
	}
	return nil
}
