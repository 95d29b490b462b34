package store

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// AnnVolumesInUseOf is the annotation of a Node with which the node signs the list of volumes in use of this object. Its
// value is the object's UID. A new object has an empty list by itself, which says nothing about the node. If its list is
// empty, the node writes the list first and then this annotation. With a list that is not empty, it writes an empty
// annotation. So if another program empties the list, for example by writing a whole status, that is noticed.
const AnnVolumesInUseOf = "volumekit.io/volumes-in-use-of"

// SaysVolumesInUse reports whether the node itself has written the list of volumes in use of this object.
func SaysVolumesInUse(node *v1.Node) bool {
	of, said := node.Annotations[AnnVolumesInUseOf]
	return len(node.Status.VolumesInUse) > 0 || said && of == string(node.UID)
}

// LostVolumesInUse reports whether another program than the node has emptied the list of volumes in use of this object. The
// node writes it again.
func LostVolumesInUse(node *v1.Node) bool {
	_, signs := node.Annotations[AnnVolumesInUseOf]
	return signs && !SaysVolumesInUse(node)
}

// NodeStatus reads from the objects of nodes what they use and what is attached to them, each time from the store itself. It is
// an operationexecutor.NodeReader.
type NodeStatus struct {
	// Store has the nodes. Required.
	Store Store
}

// VolumesInUse returns the volumes that the node lists as in use. If the node's object is missing, the error matches
// [ErrNotFound]. If another program has emptied the list, it is the error of [VolumesInUseOf].
func (s NodeStatus) VolumesInUse(ctx context.Context, name types.NodeName) ([]v1.UniqueVolumeName, error) {
	node, err := Get[*v1.Node](ctx, s.Store, "", string(name))
	if err != nil {
		return nil, fmt.Errorf("volumes in use of node %q: %w", name, err)
	}
	return VolumesInUseOf(node)
}

// VolumesInUseOf returns the volumes that a node's object lists as in use. If another program than the node has emptied the
// list, the error matches [ErrConflict]; see [LostVolumesInUse].
func VolumesInUseOf(node *v1.Node) ([]v1.UniqueVolumeName, error) {
	if LostVolumesInUse(node) {
		return nil, fmt.Errorf("volumes in use of node %q: the list was emptied, and not by the node: leave status.volumesInUse alone: %w", node.Name, ErrConflict)
	}
	return node.Status.VolumesInUse, nil
}

// VolumesAttached returns the volumes that are attached to the node, and the paths of their devices there.
func (s NodeStatus) VolumesAttached(ctx context.Context, name types.NodeName) (map[v1.UniqueVolumeName]string, error) {
	node, err := Get[*v1.Node](ctx, s.Store, "", string(name))
	if err != nil {
		return nil, fmt.Errorf("volumes attached: %w", err)
	}
	return DevicesOf(node.Status.VolumesAttached), nil
}

// DevicesOf returns the paths of devices by volume; never nil.
func DevicesOf(attached []v1.AttachedVolume) map[v1.UniqueVolumeName]string {
	devices := make(map[v1.UniqueVolumeName]string, len(attached))
	for _, at := range attached {
		devices[at.Name] = at.DevicePath
	}
	return devices
}
