package attachdetach

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// nodeChanged takes over what a node's object says. A node that is seen for the first time, or under another UID, tells with
// its status what may be attached to it.
func (c *Controller) nodeChanged(seen *v1.Node) {
	name := types.NodeName(seen.Name)
	node, there := c.objects.nodes.Get(store.NameOf(seen))
	if !there || !c.options.ManagesNode(node) {
		c.desired.DeleteNode(name, seen.UID)
		c.actual.DeleteNode(name, seen.UID)
		return
	}
	if uid, known := c.actual.NodeUID(name); known && uid == node.UID {
		if err := c.actual.SetVolumesInUse(name, node.UID, node.Status.VolumesInUse); err != nil {
			c.options.Logger.Warn("what a node uses is not known", "node", name, "err", err)
		}
	} else {
		c.meetNode(node)
	}
	// Its health may have changed, and that counts for what is to be taken from it.
	for at := range c.actual.AttachmentsOfNode(name) {
		if !at.DetachRequestedSince.IsZero() {
			c.dirty.Add(attachment{at.VolumeName, name})
		}
	}
}

// meetNode takes over a node that was not known.
func (c *Controller) meetNode(node *v1.Node) {
	name := types.NodeName(node.Name)
	if err := c.actual.RecoverNode(node); err != nil {
		c.options.Logger.Warn("the status of a node cannot be taken over as a whole", "node", name, "err", err)
	}
	c.desired.AddNode(name, node.UID)
	for _, pod := range c.objects.podsOfNode.Get(name) {
		c.podChanged(pod)
	}
}

// healthOf returns what a node's object says of the node.
func (c *Controller) healthOf(name types.NodeName) nodeHealth {
	node, _ := c.objects.nodes.Get(types.NamespacedName{Name: string(name)})
	return c.healthBy(node)
}

// healthBy returns what an object says of its node; nil when there is none.
func (c *Controller) healthBy(node *v1.Node) nodeHealth {
	switch {
	case node == nil:
		return sick
	case !c.options.ManagesNode(node):
		return unmanaged
	case slices.ContainsFunc(node.Spec.Taints, func(t v1.Taint) bool { return t.Key == TaintOutOfService }):
		return fenced
	case slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
	}):
		return ready
	}
	return sick
}

// csiNodeChanged tries again what waits for room on a node: the limit may be another one.
func (c *Controller) csiNodeChanged(node *storagev1.CSINode) { c.roomOn(types.NodeName(node.Name)) }

// limitOf returns how many volumes of a plugin a node can have, by its CSINode object, and false when that does not say.
func (c *Controller) limitOf(name types.NodeName, pluginName string) (int, bool) {
	node, there := c.objects.csiNodes.Get(types.NamespacedName{Name: string(name)})
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
