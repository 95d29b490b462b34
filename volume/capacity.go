package volume

import (
	"context"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Capacity is how much storage a plugin can still make new volumes of. Nil means unknown, which is never zero: zero means that
// there is no room.
type Capacity struct {
	// Available is how many bytes all new volumes can have together: the capacity of a CSIStorageCapacity, the
	// available_capacity of CSI.
	Available *resource.Quantity
	// MaximumVolumeSize is how many bytes one new volume can have at most. It may be more than Available, where the storage
	// promises more than it has.
	MaximumVolumeSize *resource.Quantity
	// MinimumVolumeSize is how many bytes a new volume has at least.
	MinimumVolumeSize *resource.Quantity
}

// CapacityOptions says which capacity is meant.
type CapacityOptions struct {
	// Parameters are those of the StorageClass. They must not be changed. A key that the plugin does not know is an error.
	Parameters map[string]string
	// Segment is the part of the cluster from which the new volumes are to be reached: the labels that all of its nodes have,
	// by their keys. Empty means wherever the plugin makes volumes. It must not be changed.
	Segment map[string]string
}

// VolumePluginWithCapacity can say how much it can still make. Absent, a scheduler learns that storage is full when a volume
// cannot be made.
type VolumePluginWithCapacity interface {
	ProvisionableVolumePlugin
	// GetCapacity returns how much can be made now. A segment from which no volume of the plugin can be reached has a capacity
	// of zero. What storage has promised to volumes that exist is not available, whether it was written or not. Between
	// the answer and the next Provision others may take what is available: the answer reserves nothing.
	GetCapacity(ctx context.Context, options CapacityOptions) (Capacity, error)
}

// FindCapacityPluginByName returns the plugin of that name, if it is a [VolumePluginWithCapacity].
func (m *VolumePluginMgr) FindCapacityPluginByName(name string) (VolumePluginWithCapacity, error) {
	return findByName[VolumePluginWithCapacity](m, name, CapCapacity)
}
