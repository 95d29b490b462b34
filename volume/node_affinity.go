package volume

import (
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
)

// ErrNodeAffinity says that a PersistentVolume's node affinity does not allow the node. Put the pod on a node that it
// allows.
var ErrNodeAffinity = errors.New("the node affinity of the volume does not allow the node")

// CheckNodeAffinity returns nil if pv has no node affinity, or if its node affinity allows node. It reads only the name and the labels of
// the node. The rules are those of Kubernetes: one term is enough, all requirements of a term must hold, an empty term never holds, and
// a selector without terms allows no node. Otherwise the error matches [ErrNodeAffinity]. If a term is malformed and no other term
// allows the node, it matches [ErrInvalid].
func CheckNodeAffinity(pv *v1.PersistentVolume, node *v1.Node) error {
	if !HasNodeAffinity(pv) {
		return nil
	}
	return affinityNode{labels: node.Labels, name: node.Name}.check(pv.Spec.NodeAffinity.Required)
}

// CheckNodeAffinityByName is [CheckNodeAffinity] for a plugin that knows only the name of its node, which is also the label
// kubernetes.io/hostname. A node affinity by another label does not allow the node. A plugin whose storage lies on its node calls it
// before it deletes or empties a volume: here a volume of another node is missing, or its name is that of another volume.
func CheckNodeAffinityByName(pv *v1.PersistentVolume, name types.NodeName) error {
	labels := map[string]string{v1.LabelHostname: string(name)}
	return CheckNodeAffinity(pv, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(name), Labels: labels}})
}

// HasNodeAffinity reports whether pv has a node affinity, which may exclude nodes.
func HasNodeAffinity(pv *v1.PersistentVolume) bool {
	return pv != nil && pv.Spec.NodeAffinity != nil && pv.Spec.NodeAffinity.Required != nil
}

// affinityNode has the fields of a node that node selectors use.
type affinityNode struct {
	labels labels.Set
	name   string
}

// check returns nil if one of the terms allows the node.
func (n affinityNode) check(required *v1.NodeSelector) error {
	var malformed []error
	for i, term := range required.NodeSelectorTerms {
		ok, err := n.matches(term)
		if ok {
			return nil
		}
		if err != nil {
			malformed = append(malformed, fmt.Errorf("term %d of the volume's node affinity: %w: %w", i+1, err, ErrInvalid))
		}
	}
	if len(malformed) > 0 {
		return errors.Join(malformed...)
	}
	return fmt.Errorf("node %q: %w", n.name, ErrNodeAffinity)
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

// matchesFields reports whether the requirements on fields hold. The only field is the node's name, which need not be a valid value of a
// label.
func (n affinityNode) matchesFields(requirements []v1.NodeSelectorRequirement) (bool, error) {
	all := true
	for _, r := range requirements {
		wanted := r.Operator == v1.NodeSelectorOpIn
		if r.Key != metav1.ObjectNameField || !wanted && r.Operator != v1.NodeSelectorOpNotIn || len(r.Values) == 0 {
			return false, fmt.Errorf("field %q %s %q: use %q with In or NotIn and a name", r.Key, r.Operator, r.Values, metav1.ObjectNameField)
		}
		all = all && slices.Contains(r.Values, n.name) == wanted
	}
	return all, nil
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

// operators maps the operators of node selectors to those of label selectors.
var operators = map[v1.NodeSelectorOperator]selection.Operator{
	v1.NodeSelectorOpIn:           selection.In,
	v1.NodeSelectorOpNotIn:        selection.NotIn,
	v1.NodeSelectorOpExists:       selection.Exists,
	v1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	v1.NodeSelectorOpGt:           selection.GreaterThan,
	v1.NodeSelectorOpLt:           selection.LessThan,
}
