package persistentvolume

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// nodeOf returns the node on which the claim's pod will run, nil when that is not known. What the store does not know of
// it is its name alone.
func (c *Controller) nodeOf(ctx context.Context, claim *v1.PersistentVolumeClaim) (*v1.Node, error) {
	name := c.selectedNode(claim)
	if name == "" {
		return nil, nil
	}
	node, err := store.Get[*v1.Node](ctx, c.store, "", string(name))
	if errors.Is(err, store.ErrNotFound) {
		return namedNode(name), nil
	}
	return node, err
}

// namedNode returns a node of which only the name is known.
func namedNode(name types.NodeName) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: string(name), Labels: map[string]string{v1.LabelHostname: string(name)},
	}}
}

// reachable reports whether the node affinity of the volume allows the node. A node that is not known, nil, is allowed; an
// affinity that is malformed allows none.
func reachable(pv *v1.PersistentVolume, node *v1.Node) bool {
	return node == nil || volume.CheckNodeAffinity(pv, node) == nil
}
