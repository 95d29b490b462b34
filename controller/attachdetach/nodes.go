package attachdetach

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/cluster"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// nodeChanged updates the state from a node's object. A node that is seen for the first time, or under another UID, tells with
// its status what may be attached to it.
func (c *Controller) nodeChanged(seen *v1.Node) {
	name := types.NodeName(seen.Name)
	node, there := c.objects.nodes.Get(store.NameOf(seen))
	c.health.update(name, node)
	if !there || !c.options.ManagesNode(node) {
		c.actual.DeleteNode(name, seen.UID)
		for _, pod := range c.objects.podsOfNode.Get(name) {
			c.pods.changed(pod)
		}
		return
	}
	if uid, known := c.actual.NodeUID(name); known && uid == node.UID {
		if err := c.recordUse(node); err != nil {
			c.options.Logger.Warn("what a node uses is not known", "node", name, "error", err)
		}
	} else {
		c.addNode(node)
	}
	// Its health may have changed, and that counts for what is to be taken from it.
	for at := range c.actual.AttachmentsOfNode(name) {
		if !at.DetachRequestedSince.IsZero() {
			c.dirty.Add(attachment{at.VolumeName, name})
		}
	}
}

// addNode adds a node that was not known to the actual state.
func (c *Controller) addNode(node *v1.Node) {
	name := types.NodeName(node.Name)
	if err := c.actual.RecoverNode(node); err != nil {
		c.options.Logger.Warn("the status of a node cannot be taken over as a whole", "node", name, "error", err)
	}
	_ = c.recordUse(node) // It was added just now.
	for _, pod := range c.objects.podsOfNode.Get(name) {
		c.pods.changed(pod)
	}
}

// recordUse records the volumes that a node's object lists as in use.
func (c *Controller) recordUse(node *v1.Node) error {
	name := types.NodeName(node.Name)
	if store.LostVolumesInUse(node) {
		return nil // What the node said before counts until it has said it again.
	}
	if store.SaysVolumesInUse(node) {
		c.actual.TrustVolumesInUse(name, node.UID)
	}
	return c.actual.SetVolumesInUse(name, node.UID, node.Status.VolumesInUse)
}

// useReader reads what nodes use. An object that was made anew, and that this controller has not seen yet, is an error: its list
// is not that of the node whose status no longer lists the volume.
type useReader struct {
	store.NodeStatus

	actual *cluster.ActualStateOfWorld
}

// VolumesInUse implements operationexecutor.NodeReader.
func (r useReader) VolumesInUse(ctx context.Context, name types.NodeName) ([]v1.UniqueVolumeName, error) {
	node, err := store.Get[*v1.Node](ctx, r.Store, "", string(name))
	if err != nil {
		return nil, fmt.Errorf("volumes in use of node %q: %w", name, err)
	}
	if uid, there := r.actual.NodeUID(name); !there || uid != node.UID {
		return nil, fmt.Errorf("volumes in use of node %q: its object with UID %q was made anew: %w", name, node.UID, cluster.ErrNodeUnknown)
	}
	return store.VolumesInUseOf(node)
}

// csiNodeChanged tries again what waits for room on a node: the limit may be another one.
func (c *Controller) csiNodeChanged(node *storagev1.CSINode) {
	c.failures.roomOn(types.NodeName(node.Name))
}

// limitOf returns how many volumes of a plugin a node can have, by its CSINode object, and false when that does not say.
func (o objects) limitOf(name types.NodeName, pluginName string) (int, bool) {
	node, there := o.csiNodes.Get(types.NamespacedName{Name: string(name)})
	if !there {
		return 0, false
	}
	driverName := volume.DriverOfPluginName(pluginName)
	for _, driver := range node.Spec.Drivers {
		if driver.Name == driverName && driver.Allocatable != nil && driver.Allocatable.Count != nil {
			return int(*driver.Allocatable.Count), true
		}
	}
	return 0, false
}
