package store

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// NodeStatus reads from the objects of nodes what they use and what is attached to them, each time from the store itself. It is
// an operationexecutor.NodeReader.
type NodeStatus struct {
	// Store has the nodes. Required.
	Store Store
}

// VolumesInUse returns the volumes that the node says it uses. A node that is gone uses none.
func (s NodeStatus) VolumesInUse(ctx context.Context, name types.NodeName) ([]v1.UniqueVolumeName, error) {
	node, err := Get[*v1.Node](ctx, s.Store, "", string(name))
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("volumes in use: %w", err)
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
