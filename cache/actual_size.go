package cache

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// This file holds the book-keeping of sizes: how far the expansion of a volume on this node has come.

// expansion is what is known of a volume's size on this node.
type expansion struct {
	size       resource.Quantity // zero: not known
	notInUse   bool              // the plugin cannot expand it while it is used
	finalError bool              // the last attempt failed for good
}

// InitializeClaimSize implements the executor's updaters.
func (a *ActualStateOfWorld) InitializeClaimSize(volumeName v1.UniqueVolumeName, claimSize resource.Quantity) {
	a.expand(volumeName, func(e *expansion) bool {
		if !e.size.IsZero() || claimSize.IsZero() {
			return false
		}
		e.size = claimSize
		return true
	})
}

// GetClaimSize implements the executor's updaters.
func (a *ActualStateOfWorld) GetClaimSize(volumeName v1.UniqueVolumeName) resource.Quantity {
	return a.expansionOf(volumeName).size
}

// MarkVolumeAsResized implements the executor's updaters.
func (a *ActualStateOfWorld) MarkVolumeAsResized(volumeName v1.UniqueVolumeName, claimSize resource.Quantity) bool {
	return a.expand(volumeName, func(e *expansion) bool {
		e.size, e.finalError = claimSize, false
		return true
	})
}

// MarkForInUseExpansionError implements the executor's updaters.
func (a *ActualStateOfWorld) MarkForInUseExpansionError(volumeName v1.UniqueVolumeName) {
	a.expand(volumeName, func(e *expansion) bool { e.notInUse = true; return true })
}

// MarkVolumeExpansionFailedWithFinalError implements the executor's updaters.
func (a *ActualStateOfWorld) MarkVolumeExpansionFailedWithFinalError(volumeName v1.UniqueVolumeName) {
	a.expand(volumeName, func(e *expansion) bool { e.finalError = true; return true })
}

// RemoveVolumeFromFailedWithFinalErrors implements the executor's updaters.
func (a *ActualStateOfWorld) RemoveVolumeFromFailedWithFinalErrors(volumeName v1.UniqueVolumeName) {
	a.expand(volumeName, func(e *expansion) bool { e.finalError = false; return true })
}

// CheckVolumeInFailedExpansionWithFinalErrors implements the executor's updaters.
func (a *ActualStateOfWorld) CheckVolumeInFailedExpansionWithFinalErrors(volumeName v1.UniqueVolumeName) bool {
	return a.expansionOf(volumeName).finalError
}

// expand changes what is known of a volume's size by f, which reports whether it changed anything, and tells of that. It
// returns false when f did, or when the volume is not known.
func (a *ActualStateOfWorld) expand(volumeName v1.UniqueVolumeName, f func(*expansion) bool) bool {
	err := a.update(volumeName, func(v *knownVolume) error {
		if v == nil || !f(&v.expansion) {
			return ErrNotAttached
		}
		return nil
	})
	return err == nil
}

func (a *ActualStateOfWorld) expansionOf(volumeName v1.UniqueVolumeName) expansion {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if v := a.volumes[volumeName]; v != nil {
		return v.expansion
	}
	return expansion{}
}
