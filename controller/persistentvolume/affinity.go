package persistentvolume

import (
	"context"
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
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

// onlyReachable returns those of volumes that can be used on node.
func onlyReachable(volumes []*v1.PersistentVolume, node *v1.Node) []*v1.PersistentVolume {
	return slices.DeleteFunc(slices.Clone(volumes), func(pv *v1.PersistentVolume) bool { return !reachable(pv, node) })
}

// reachable reports whether the node affinity of the volume allows the node. A node that is not known, nil, is allowed.
// As in Kubernetes, one term is enough, a term holds when all of it does, and an empty one never does.
func reachable(pv *v1.PersistentVolume, node *v1.Node) bool {
	if node == nil || pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return true
	}
	return slices.ContainsFunc(pv.Spec.NodeAffinity.Required.NodeSelectorTerms, func(term v1.NodeSelectorTerm) bool {
		return len(term.MatchExpressions)+len(term.MatchFields) > 0 &&
			!slices.ContainsFunc(term.MatchExpressions, func(r v1.NodeSelectorRequirement) bool { return !labelHolds(r, node) }) &&
			!slices.ContainsFunc(term.MatchFields, func(r v1.NodeSelectorRequirement) bool { return !fieldHolds(r, node) })
	})
}

// labelOperators are the operators on labels.
var labelOperators = map[v1.NodeSelectorOperator]selection.Operator{
	v1.NodeSelectorOpIn:           selection.In,
	v1.NodeSelectorOpNotIn:        selection.NotIn,
	v1.NodeSelectorOpExists:       selection.Exists,
	v1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	v1.NodeSelectorOpGt:           selection.GreaterThan,
	v1.NodeSelectorOpLt:           selection.LessThan,
}

// labelHolds reports whether the node's labels meet r. One that is malformed is met by no node.
func labelHolds(r v1.NodeSelectorRequirement, node *v1.Node) bool {
	requirement, err := labels.NewRequirement(r.Key, labelOperators[r.Operator], r.Values)
	return err == nil && requirement.Matches(labels.Set(node.Labels))
}

// fieldHolds reports whether the node's name, which is the only field that Kubernetes knows here, meets r.
func fieldHolds(r v1.NodeSelectorRequirement, node *v1.Node) bool {
	switch {
	case r.Key != metav1.ObjectNameField:
		return false
	case r.Operator == v1.NodeSelectorOpIn:
		return slices.Contains(r.Values, node.Name)
	case r.Operator == v1.NodeSelectorOpNotIn:
		return !slices.Contains(r.Values, node.Name)
	}
	return false
}
