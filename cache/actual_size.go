package cache

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// This file holds the book-keeping of sizes: how far the expansion of a volume on this node has come. All of it goes when
// the volume leaves.

// expansion is what is known of a volume's size on this node.
type expansion struct {
	size       resource.Quantity // zero: not known
	notInUse   bool              // the plugin cannot expand it while it is used
	finalError bool              // the last attempt failed for good
}

// InitializeClaimSize implements the executor's updaters.
func (a *ActualStateOfWorld) InitializeClaimSize(volumeName v1.UniqueVolumeName, claimSize resource.Quantity) {
	a.expand(volumeName, func(e *expansion) {
		if e.size.IsZero() {
			e.size = claimSize.DeepCopy()
		}
	})
}

// GetClaimSize implements the executor's updaters.
func (a *ActualStateOfWorld) GetClaimSize(volumeName v1.UniqueVolumeName) resource.Quantity {
	return a.expansionOf(volumeName).size
}

// MarkVolumeAsResized implements the executor's updaters. A volume that cannot be expanded while it is used stays so.
func (a *ActualStateOfWorld) MarkVolumeAsResized(volumeName v1.UniqueVolumeName, claimSize resource.Quantity) bool {
	return a.expand(volumeName, func(e *expansion) { e.size, e.finalError = claimSize.DeepCopy(), false })
}

// MarkForInUseExpansionError implements the executor's updaters.
func (a *ActualStateOfWorld) MarkForInUseExpansionError(volumeName v1.UniqueVolumeName) {
	a.expand(volumeName, func(e *expansion) { e.notInUse = true })
}

// HasInUseExpansionError reports whether MarkForInUseExpansionError was called for the volume, which has not left since.
func (a *ActualStateOfWorld) HasInUseExpansionError(volumeName v1.UniqueVolumeName) bool {
	return a.expansionOf(volumeName).notInUse
}

// MarkVolumeExpansionFailedWithFinalError implements the executor's updaters.
func (a *ActualStateOfWorld) MarkVolumeExpansionFailedWithFinalError(volumeName v1.UniqueVolumeName) {
	a.expand(volumeName, func(e *expansion) { e.finalError = true })
}

// RemoveVolumeFromFailedWithFinalErrors implements the executor's updaters.
func (a *ActualStateOfWorld) RemoveVolumeFromFailedWithFinalErrors(volumeName v1.UniqueVolumeName) {
	a.expand(volumeName, func(e *expansion) { e.finalError = false })
}

// CheckVolumeInFailedExpansionWithFinalErrors implements the executor's updaters.
func (a *ActualStateOfWorld) CheckVolumeInFailedExpansionWithFinalErrors(volumeName v1.UniqueVolumeName) bool {
	return a.expansionOf(volumeName).finalError
}

// expand changes what is known of a volume's size by f, and tells of that. It returns false when the volume is not known.
func (a *ActualStateOfWorld) expand(volumeName v1.UniqueVolumeName, f func(*expansion)) (known bool) {
	_ = a.update(volumeName, func(v *knownVolume) error {
		if v == nil {
			return errUnchanged
		}
		known = true
		before := v.expansion
		f(&v.expansion)
		if v.expansion == before {
			return errUnchanged
		}
		return nil
	})
	return known
}

func (a *ActualStateOfWorld) expansionOf(volumeName v1.UniqueVolumeName) expansion {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if v := a.volumes[volumeName]; v != nil {
		return v.expansion
	}
	return expansion{}
}
