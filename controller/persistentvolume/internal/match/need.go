package match

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/volumekit/volumekit/controller/internal/fit"
)

// Need is what a claim asks of a volume that names no claim. Make it with [NewNeed].
type Need struct {
	claim    *v1.PersistentVolumeClaim
	selector labels.Selector
	node     *v1.Node // on which the volume is to be had; nil when it is not known
}

// NewNeed returns what claim needs of a volume on node, which is nil when it is not known. An error says that the claim's selector is
// malformed.
func NewNeed(claim *v1.PersistentVolumeClaim, node *v1.Node) (Need, error) {
	if claim.Spec.Selector == nil {
		return Need{claim: claim, selector: labels.Everything(), node: node}, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(claim.Spec.Selector)
	return Need{claim: claim, selector: selector, node: node}, err
}

// meets reports whether a volume that names no claim meets the need.
func (n Need) meets(pv *v1.PersistentVolume) bool {
	return fit.Usable(n.claim, pv) && fit.Free(n.claim, pv, n.selector) && fit.Reachable(pv, n.node)
}
