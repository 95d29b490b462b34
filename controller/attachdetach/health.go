package attachdetach

import (
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
)

// nodesHealth has the health of nodes, and since when they are not ready. Its methods may be called from several goroutines at once.
type nodesHealth struct {
	nodes   *store.Mirror[*v1.Node]
	manages func(node *v1.Node) bool

	mu       sync.Mutex // no call that waits is made under it
	notReady map[types.NodeName]notReadySince
}

// of returns the health of a node by its object.
func (h *nodesHealth) of(name types.NodeName) nodeHealth {
	node, _ := h.nodes.Get(types.NamespacedName{Name: string(name)})
	return h.healthFrom(node)
}

// healthFrom returns the health of a node by its object, which is nil if there is none.
func (h *nodesHealth) healthFrom(node *v1.Node) nodeHealth {
	switch {
	case node == nil:
		return missing
	case !h.manages(node):
		return unmanaged
	case slices.ContainsFunc(node.Spec.Taints, func(t v1.Taint) bool { return t.Key == v1.TaintNodeOutOfService }):
		return fenced
	}
	switch condition := readiness(node); {
	case condition == nil:
		return silent
	case condition.Status == v1.ConditionTrue:
		return ready
	}
	return notReady
}

// readiness returns the Ready condition of a node; nil if there is none.
func readiness(node *v1.Node) *v1.NodeCondition {
	i := slices.IndexFunc(node.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == v1.NodeReady })
	if i < 0 {
		return nil
	}
	return &node.Status.Conditions[i]
}

// notReadySince records since when a node has not been ready.
type notReadySince struct {
	uid types.UID
	// status and changed are those of the Ready condition. If they change, the node may have been ready in between.
	status  v1.ConditionStatus
	changed metav1.Time
	// since is when this controller first saw it.
	since time.Time
}

// isOf reports whether node may have been not ready all the time since then.
func (s notReadySince) isOf(node *v1.Node) bool {
	condition := readiness(node)
	return condition != nil && s.uid == node.UID && s.status == condition.Status && s.changed.Equal(&condition.LastTransitionTime)
}

// update records since when a node has not been ready. node is its object, nil if there is none.
func (h *nodesHealth) update(name types.NodeName, node *v1.Node) {
	health := h.healthFrom(node)
	h.mu.Lock()
	defer h.mu.Unlock()
	if health != notReady {
		delete(h.notReady, name)
		return
	}
	if known, was := h.notReady[name]; !was || !known.isOf(node) {
		condition := readiness(node)
		h.notReady[name] = notReadySince{uid: node.UID, status: condition.Status, changed: condition.LastTransitionTime, since: time.Now()}
	}
}

// notReadyFor returns for how long a node has not been ready without a break, as far as this controller has seen it. It is zero for a node that
// is ready, or has no object.
func (h *nodesHealth) notReadyFor(node *v1.Node) time.Duration {
	if h.healthFrom(node) != notReady {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	known, was := h.notReady[types.NodeName(node.Name)]
	if !was || !known.isOf(node) {
		return 0
	}
	return time.Since(known.since)
}
