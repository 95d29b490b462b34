package match

import (
	"math"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/volumekit/volumekit/controller/persistentvolume/internal/objects"
)

// group is what a claim and its volume have in common: a claim of one class, attributes class and volume mode fits no volume of
// another.
type group struct {
	class, attributes string
	mode              v1.PersistentVolumeMode
}

func groupOfVolume(pv *v1.PersistentVolume) group {
	return group{class: objects.ClassOfVolume(pv), attributes: objects.Deref(pv.Spec.VolumeAttributesClassName), mode: modeOf(pv.Spec.VolumeMode)}
}

func groupOfClaim(claim *v1.PersistentVolumeClaim) group {
	return group{class: objects.ClassOf(claim), attributes: objects.Deref(claim.Spec.VolumeAttributesClassName), mode: modeOf(claim.Spec.VolumeMode)}
}

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
	return usable(n.claim, pv) && free(n.claim, pv, n.selector) && Reachable(pv, n.node)
}

// requestedBytes returns what a claim asks for, as bytesOf does.
func requestedBytes(claim *v1.PersistentVolumeClaim) int64 {
	size := claim.Spec.Resources.Requests[v1.ResourceStorage]
	if size.Sign() < 0 {
		return math.MaxInt64
	}
	return bytesOf(size)
}

// bytesOf returns a size, rounded up to whole bytes; math.MaxInt64 for whatever is larger.
func bytesOf(size resource.Quantity) int64 {
	if size.CmpInt64(math.MaxInt64) >= 0 {
		return math.MaxInt64
	}
	return size.Value()
}
