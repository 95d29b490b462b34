package cache

import (
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/operationexecutor"
)

// GetGloballyMountedVolumes returns the volumes that are staged for certain, by name.
func (a *ActualStateOfWorld) GetGloballyMountedVolumes() []AttachedVolume {
	return a.rows(func(v *knownVolume) bool { return v.device == operationexecutor.DeviceGloballyMounted })
}

// GetAttachableVolumeNames is attachableVolumeNames for tests.
func (a *ActualStateOfWorld) GetAttachableVolumeNames() []v1.UniqueVolumeName {
	return a.attachableVolumeNames()
}

// GetAttachableVolumeNames is attachableVolumeNames for tests.
func (d *DesiredStateOfWorld) GetAttachableVolumeNames() []v1.UniqueVolumeName {
	return d.attachableVolumeNames()
}
