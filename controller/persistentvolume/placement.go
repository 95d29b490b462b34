package persistentvolume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// placement finds the node for which a claim's volume is provisioned or chosen.
type placement struct {
	store    store.Store
	podsOf   *store.Index[*v1.Pod, types.NamespacedName]
	nodeName types.NodeName // the only node; empty if there are several nodes
}

// selected returns the node of a claim, "" if it is unknown. It is the node that a scheduler selected, otherwise the
// only node, otherwise that of the claim's first pod: without a scheduler, pods have their nodes from the start.
func (p placement) selected(claim *v1.PersistentVolumeClaim) types.NodeName {
	if node := claim.Annotations[objects.AnnSelectedNode]; node != "" {
		return types.NodeName(node)
	}
	if p.nodeName != "" {
		return p.nodeName
	}
	if pod := p.firstConsumer(claim); pod != nil {
		return types.NodeName(pod.Spec.NodeName)
	}
	return ""
}

// node returns the node of a claim, nil if it is unknown. If the store does not have the node, the returned object has
// only its name.
func (p placement) node(ctx context.Context, claim *v1.PersistentVolumeClaim) (*v1.Node, error) {
	name := p.selected(claim)
	if name == "" {
		return nil, nil
	}
	node, err := store.Get[*v1.Node](ctx, p.store, "", string(name))
	if errors.Is(err, store.ErrNotFound) {
		return namedNode(name), nil
	}
	return node, err
}

// errSelectedNodeGone says that the node that a scheduler selected for a claim does not exist.
var errSelectedNodeGone = errors.New("a scheduler must select another node")

// nodeToProvision returns the node for which a volume is provisioned. It is nil unless the class waits for its first
// consumer. If a scheduler selected a node that does not exist, the error matches errSelectedNodeGone.
func (p placement) nodeToProvision(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) (*v1.Node, error) {
	if !objects.WaitsForConsumer(class) {
		return nil, nil
	}
	name := p.selected(claim)
	node, err := store.Get[*v1.Node](ctx, p.store, "", string(name))
	switch {
	case err == nil:
		return node, nil
	case errors.Is(err, store.ErrNotFound) && name == p.nodeName:
		return namedNode(name), nil
	case errors.Is(err, store.ErrNotFound) && p.nodeName == "" && claim.Annotations[objects.AnnSelectedNode] != "":
		return nil, fmt.Errorf("node %q, for which the volume is to be made, does not exist: %w", name, errSelectedNodeGone)
	}
	return nil, volume.Transient(fmt.Errorf("node %q, for which the volume is to be made: %w", name, err))
}

// namedNode returns the object of a node with only a name.
func namedNode(name types.NodeName) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: string(name), Labels: map[string]string{v1.LabelHostname: string(name)},
	}}
}

// isAwaited reports whether no volume may be chosen yet: the class waits for the first consumer, whose node is unknown.
// class may be nil.
func (p placement) isAwaited(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) bool {
	return class != nil && objects.WaitsForConsumer(class) && p.selected(claim) == ""
}

// whyAwaited returns the reason of a claim that waits for its node.
func (p placement) whyAwaited(claim *v1.PersistentVolumeClaim) reason {
	why := reason{
		eventType: v1.EventTypeNormal, reason: ReasonWaitForFirstConsumer,
		message: "waiting for first consumer to be created before binding: the node is not selected yet",
	}
	if pod := p.firstConsumer(claim); pod != nil {
		why.reason, why.message = ReasonWaitForPodScheduled, fmt.Sprintf("waiting for pod %q to be scheduled", store.NameOf(pod))
	}
	return why
}

// firstConsumer returns the pod that decides the node of a claim: the oldest one with a node, else the oldest one. It is
// nil if no pod uses the claim.
func (p placement) firstConsumer(claim *v1.PersistentVolumeClaim) *v1.Pod {
	pods := slices.DeleteFunc(p.podsOf.Get(store.NameOf(claim)), volume.IsPodTerminated)
	if len(pods) == 0 {
		return nil
	}
	return slices.MinFunc(pods, func(a, b *v1.Pod) int {
		return cmp.Or(
			-cmp.Compare(min(1, len(a.Spec.NodeName)), min(1, len(b.Spec.NodeName))),
			a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name),
		)
	})
}
