package attachdetach

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// nodeChanged takes over what a node's object says. A node that is seen for the first time, or under another UID, tells with
// its status what may be attached to it.
func (c *Controller) nodeChanged(seen *v1.Node) {
	name := types.NodeName(seen.Name)
	node, there := c.objects.nodes.Get(store.NameOf(seen))
	c.noteSickness(name, node)
	if !there || !c.options.ManagesNode(node) {
		c.actual.DeleteNode(name, seen.UID)
		for _, pod := range c.objects.podsOfNode.Get(name) {
			c.podChanged(pod)
		}
		return
	}
	if uid, known := c.actual.NodeUID(name); known && uid == node.UID {
		if err := c.takeUse(node); err != nil {
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
	_ = c.takeUse(node) // It was added just now.
	for _, pod := range c.objects.podsOfNode.Get(name) {
		c.podChanged(pod)
	}
}

// takeUse takes over what a node's object says that the node uses.
func (c *Controller) takeUse(node *v1.Node) error {
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
// is not that of the node that was told that the volume is withdrawn.
type useReader struct {
	store.NodeStatus

	actual *cache.ClusterActualStateOfWorld
}

// VolumesInUse implements operationexecutor.NodeReader.
func (r useReader) VolumesInUse(ctx context.Context, name types.NodeName) ([]v1.UniqueVolumeName, error) {
	node, err := store.Get[*v1.Node](ctx, r.Store, "", string(name))
	if err != nil {
		return nil, fmt.Errorf("volumes in use of node %q: %w", name, err)
	}
	if uid, there := r.actual.NodeUID(name); !there || uid != node.UID {
		return nil, fmt.Errorf("volumes in use of node %q: its object with UID %q was made anew: %w", name, node.UID, cache.ErrNodeUnknown)
	}
	return store.VolumesInUseOf(node)
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
		return missing
	case !c.options.ManagesNode(node):
		return unmanaged
	case slices.ContainsFunc(node.Spec.Taints, func(t v1.Taint) bool { return t.Key == TaintOutOfService }):
		return fenced
	}
	switch condition := readiness(node); {
	case condition == nil:
		return silent
	case condition.Status == v1.ConditionTrue:
		return ready
	}
	return sick
}

// readiness returns the condition of an object that says whether its node is ready; nil when it says nothing of that.
func readiness(node *v1.Node) *v1.NodeCondition {
	i := slices.IndexFunc(node.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == v1.NodeReady })
	if i < 0 {
		return nil
	}
	return &node.Status.Conditions[i]
}

// sickness is that a node has not been ready all the time.
type sickness struct {
	uid types.UID
	// status and changed are those of its condition. When they are others, it may have been ready in between.
	status  v1.ConditionStatus
	changed metav1.Time
	// since is when this controller has seen it first.
	since time.Time
}

// isOf reports whether node may have been sick without a break since then.
func (s sickness) isOf(node *v1.Node) bool {
	condition := readiness(node)
	return condition != nil && s.uid == node.UID && s.status == condition.Status && s.changed.Equal(&condition.LastTransitionTime)
}

// noteSickness keeps since when a node is sick; node is its object, and nil when there is none.
func (c *Controller) noteSickness(name types.NodeName, node *v1.Node) {
	health := c.healthBy(node)
	c.mu.Lock()
	defer c.mu.Unlock()
	if health != sick {
		delete(c.sicknesses, name)
		return
	}
	if known, was := c.sicknesses[name]; !was || !known.isOf(node) {
		condition := readiness(node)
		c.sicknesses[name] = sickness{uid: node.UID, status: condition.Status, changed: condition.LastTransitionTime, since: time.Now()}
	}
}

// sickFor returns for how long a node has been sick without a break, as far as this controller has seen it. Of a node that is
// not sick, and of one that has no object, that is zero.
func (c *Controller) sickFor(node *v1.Node) time.Duration {
	if c.healthBy(node) != sick {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	known, was := c.sicknesses[types.NodeName(node.Name)]
	if !was || !known.isOf(node) {
		return 0
	}
	return time.Since(known.since)
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
