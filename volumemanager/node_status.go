package volumemanager

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

// VolumesInUseReporter has the node's status list the volumes that the node uses, where a controller attaches. It is for
// orchestrators that write the status of their nodes themselves.
type VolumesInUseReporter interface {
	// ReportVolumesInUse returns nil when the node's status, where the controller reads it, lists volumes as in use and no
	// others; they are sorted. Nothing is mounted from a volume before that. An error that matches [ErrReportedLater] says
	// that Manager.MarkVolumesAsReportedInUse will be called when it does; after any other one it is called again. The calls
	// are made one after the other, each time the list may have changed, also with a list that is still there.
	ReportVolumesInUse(ctx context.Context, volumes []v1.UniqueVolumeName) error
}

// ErrReportedLater says that the list of volumes in use was taken and is not in the node's status yet.
var ErrReportedLater = errors.New("the node's status lists the volumes in use later")

// conflicts bounds how often a node's object is read again because somebody else has written it in between.
const conflicts = 16

// nodeStatus is what the store says of this node, and what was last seen of it.
type nodeStatus struct {
	store.NodeStatus
	name types.NodeName

	mu sync.Mutex
	// attached are the volumes that the status listed last, with their devices; nil until one was seen. It is replaced,
	// never changed.
	attached map[v1.UniqueVolumeName]string
}

var (
	_ operationexecutor.NodeReader      = (*nodeStatus)(nil)
	_ operationexecutor.NodeStatusCache = (*nodeStatus)(nil)
	_ VolumesInUseReporter              = (*nodeStatus)(nil)
)

// LastVolumesAttached implements operationexecutor.NodeStatusCache.
func (n *nodeStatus) LastVolumesAttached(nodeName types.NodeName) (map[v1.UniqueVolumeName]string, bool) {
	if nodeName != n.name {
		return nil, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.attached, n.attached != nil
}

// lookUp returns what the status that was seen last says of one volume.
func (n *nodeStatus) lookUp(name v1.UniqueVolumeName) (devicePath string, listed, seen bool) {
	attached, seen := n.LastVolumesAttached(n.name)
	devicePath, listed = attached[name]
	return devicePath, listed, seen
}

// replace takes over what a status lists, and returns the volumes of which it says something else than the one before.
func (n *nodeStatus) replace(attached []v1.AttachedVolume) []v1.UniqueVolumeName {
	next := store.DevicesOf(attached)
	n.mu.Lock()
	last := n.attached
	n.attached = next
	n.mu.Unlock()
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

// ReportVolumesInUse implements VolumesInUseReporter: it writes the list into the node's object.
func (n *nodeStatus) ReportVolumesInUse(ctx context.Context, volumes []v1.UniqueVolumeName) error {
	var err error
	for range conflicts {
		if err = n.writeInUse(ctx, volumes); !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return err
}

// listed returns what the node's object lists as in use, whoever has written that.
func (n *nodeStatus) listed(ctx context.Context) ([]v1.UniqueVolumeName, error) {
	node, err := store.Get[*v1.Node](ctx, n.Store, "", string(n.name))
	if err != nil {
		return nil, fmt.Errorf("volumes in use of this node: %w", err)
	}
	return node.Status.VolumesInUse, nil
}

// writeInUse reads the node's object, and writes it unless it has the list.
func (n *nodeStatus) writeInUse(ctx context.Context, volumes []v1.UniqueVolumeName) error {
	node, err := store.Get[*v1.Node](ctx, n.Store, "", string(n.name))
	if err != nil {
		return fmt.Errorf("status of this node: %w", err)
	}
	if slices.Equal(node.Status.VolumesInUse, volumes) {
		return n.sign(ctx, node)
	}
	node.Status.VolumesInUse = volumes
	if err := n.writeList(ctx, node); err != nil {
		return fmt.Errorf("status of this node: %w", err)
	}
	return nil // An empty list is signed when the node's object is seen with it.
}

// writeList writes a list that has changed. One that is not empty is signed with it, unless this node may not write more than its
// status.
func (n *nodeStatus) writeList(ctx context.Context, node *v1.Node) error {
	if len(node.Status.VolumesInUse) == 0 || isSigned(node) {
		_, err := store.Update(ctx, n.Store, node)
		return err
	}
	signed := node.DeepCopy()
	metav1.SetMetaDataAnnotation(&signed.ObjectMeta, store.AnnVolumesInUseOf, signature(node))
	_, err := store.Update(ctx, n.Store, signed)
	if err == nil || errors.Is(err, store.ErrConflict) {
		return err
	}
	_, err = store.Update(ctx, n.Store, node) // A conflict when the status was written before the error.
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
func (n *nodeStatus) sign(ctx context.Context, node *v1.Node) error {
	if isSigned(node) {
		return nil
	}
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, store.AnnVolumesInUseOf, signature(node))
	if _, err := store.Update(ctx, n.Store, node); errors.Is(err, store.ErrConflict) {
		return err
	}
	return nil
}
