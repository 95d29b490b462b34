package match

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/volumekit/volumekit/controller/internal/fit"
)

// Need holds the requirements of a claim for a volume that names no claim. Make it with [NewNeed].
type Need struct {
	claim    *v1.PersistentVolumeClaim
	selector labels.Selector
	node     *v1.Node // the node that must reach the volume; nil if it is unknown
}

// NewNeed returns the need of a claim on node, which is nil if it is unknown. The error is about a malformed selector
// of the claim.
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
