package nodestatus

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
)

// Labels reads the node's labels from a store, for operationexecutor.NodeLabels. A node that the store does not know has one
// label, its name. The controller assumes the same when it binds claims.
type Labels struct {
	// Store has the node's object; Node is its name.
	Store store.Store
	Node  types.NodeName
}

// NodeLabels implements operationexecutor.NodeLabels.
func (l Labels) NodeLabels(ctx context.Context) (map[string]string, error) {
	node, err := store.Get[*v1.Node](ctx, l.Store, "", string(l.Node))
	if errors.Is(err, store.ErrNotFound) {
		return map[string]string{v1.LabelHostname: string(l.Node)}, nil
	}
	if err != nil {
		return nil, err
	}
	return node.Labels, nil
}
