package operationexecutor

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/volumekit/volumekit/volume"
)

// ErrNodeAffinity says that a PersistentVolume's node affinity does not allow this node. Put the pod on a node that it
// allows.
var ErrNodeAffinity = errors.New("the node affinity of the volume does not allow this node")

// checkNodeAffinity refuses a PersistentVolume whose node affinity does not allow this node, before anything is done. The
// labels are asked for only when the volume has an affinity.
func (g *Generator) checkNodeAffinity(ctx context.Context, x *execution, spec *volume.Spec) error {
	required := requiredNodes(spec)
	if required == nil || g.nodeLabels == nil {
		return nil
	}
	return x.step("NodeLabels", func() error {
		of, err := g.nodeLabels.NodeLabels(ctx)
		if err != nil {
			return volume.Transient(fmt.Errorf("the labels of this node are not known: %w", err))
		}
		node := affinityNode{labels: of, name: string(g.plugins.Host().GetNodeName())}
		return node.check(required)
	})
}

// requiredNodes returns the selector of the nodes that may use the volume; nil when all may.
func requiredNodes(spec *volume.Spec) *v1.NodeSelector {
	if spec == nil || spec.PersistentVolume == nil || spec.PersistentVolume.Spec.NodeAffinity == nil {
		return nil
	}
	return spec.PersistentVolume.Spec.NodeAffinity.Required
}

// affinityNode is what a node selector is asked about.
type affinityNode struct {
	labels labels.Set
	name   string
}

// check reports whether one of the terms allows the node. All terms are read: a selector with a malformed one is an error
// that matches volume.ErrInvalid, whatever the others say. A selector without terms allows no node.
func (n affinityNode) check(required *v1.NodeSelector) error {
	allowed := false
	for i, term := range required.NodeSelectorTerms {
		ok, err := n.matches(term)
		if err != nil {
			return fmt.Errorf("term %d of the volume's node affinity: %w: %w", i+1, err, volume.ErrInvalid)
		}
		allowed = allowed || ok
	}
	if !allowed {
		return fmt.Errorf("node %q: %w", n.name, ErrNodeAffinity)
	}
	return nil
}

// matches reports whether all requirements of the term hold. A term without any matches nothing.
func (n affinityNode) matches(term v1.NodeSelectorTerm) (bool, error) {
	byLabels, err := matchesAll(term.MatchExpressions, n.labels)
	if err != nil {
		return false, err
	}
	byFields, err := n.matchesFields(term.MatchFields)
	if err != nil {
		return false, err
	}
	return byLabels && byFields && len(term.MatchExpressions)+len(term.MatchFields) > 0, nil
}

// matchesFields is about the one field that a node can be chosen by, its name.
func (n affinityNode) matchesFields(requirements []v1.NodeSelectorRequirement) (bool, error) {
	for _, r := range requirements {
		in := r.Operator == v1.NodeSelectorOpIn || r.Operator == v1.NodeSelectorOpNotIn
		if r.Key != metav1.ObjectNameField || !in || len(r.Values) != 1 {
			return false, fmt.Errorf("field %q %s %q: use %q with In or NotIn and one value", r.Key, r.Operator, r.Values, metav1.ObjectNameField)
		}
	}
	return matchesAll(requirements, labels.Set{metav1.ObjectNameField: n.name})
}

func matchesAll(requirements []v1.NodeSelectorRequirement, of labels.Set) (bool, error) {
	all := true
	for _, r := range requirements {
		operator, ok := operators[r.Operator]
		if !ok {
			return false, fmt.Errorf("%q has operator %q: use In, NotIn, Exists, DoesNotExist, Gt or Lt", r.Key, r.Operator)
		}
		requirement, err := labels.NewRequirement(r.Key, operator, r.Values)
		if err != nil {
			return false, err
		}
		all = all && requirement.Matches(of)
	}
	return all, nil
}

// operators are those of a node selector, in the words of label selectors.
var operators = map[v1.NodeSelectorOperator]selection.Operator{
	v1.NodeSelectorOpIn:           selection.In,
	v1.NodeSelectorOpNotIn:        selection.NotIn,
	v1.NodeSelectorOpExists:       selection.Exists,
	v1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	v1.NodeSelectorOpGt:           selection.GreaterThan,
	v1.NodeSelectorOpLt:           selection.LessThan,
}
