package volume

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// RequestedBytes returns the number of bytes that claim asks for, rounded up to a whole one. A claim that asks for no
// size or for none above zero is an error that matches [ErrInvalid]; a size beyond 8 EiB one that matches
// [ErrInfeasible].
func RequestedBytes(claim *v1.PersistentVolumeClaim) (int64, error) {
	if claim == nil {
		return 0, fmt.Errorf("claim is nil: %w", ErrInvalid)
	}
	size, ok := claim.Spec.Resources.Requests[v1.ResourceStorage]
	name := GetPersistentVolumeClaimQualifiedName(claim)
	switch {
	case !ok:
		return 0, fmt.Errorf("claim %q asks for no size: set spec.resources.requests.storage: %w", name, ErrInvalid)
	case size.Sign() <= 0:
		return 0, fmt.Errorf("claim %q asks for %s: give a size above zero: %w", name, size.String(), ErrInvalid)
	case size.Cmp(*resource.NewQuantity(maxBytes, resource.BinarySI)) > 0:
		return 0, fmt.Errorf("claim %q asks for %s, more than any volume can hold: %w", name, size.String(), ErrInfeasible)
	}
	return size.Value(), nil
}

// maxBytes is the greatest size of a file or device that the kernel can name.
const maxBytes = 1<<63 - 1

// GetPersistentVolumeClaimQualifiedName returns the claim's namespace, a slash and its name; the name alone when it has
// no namespace.
func GetPersistentVolumeClaimQualifiedName(claim *v1.PersistentVolumeClaim) string {
	if claim.Namespace == "" {
		return claim.Name
	}
	return claim.Namespace + "/" + claim.Name
}
