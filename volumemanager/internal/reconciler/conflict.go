package reconciler

import (
	"fmt"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// This file holds what keeps a volume from being used in two ways at once: as a filesystem and as a device, or mounted
// with two SELinux contexts. Who comes second waits until the volume was released.

// mustWait reports whether a pod wants the volume in another way than it is here, and keeps why.
func (v *view) mustWait(row *operationexecutor.VolumeToMount) bool {
	err := v.conflict(row)
	if err == nil {
		return false
	}
	if v.waits == nil {
		v.waits = make(map[volume.UniquePodName]error, 1)
	}
	v.waits[row.PodName] = err
	return true
}

// conflict returns why a pod cannot have the volume as it is here, or nil.
func (v *view) conflict(row *operationexecutor.VolumeToMount) error {
	if !v.known {
		return nil
	}
	if here := v.actual.VolumeSpec; here != nil && volume.IsBlock(here) != volume.IsBlock(row.VolumeSpec) {
		return fmt.Errorf("volume %q is here as a %s and pod %q wants it as a %s: it waits until all others have given it up: %w",
			v.name, modeOf(here), row.PodName, modeOf(row.VolumeSpec), volume.ErrInUse)
	}
	if context, ok := v.mountedContext(); ok && context != row.SELinuxLabel {
		return &cache.SELinuxMountMismatchError{
			VolumeName: v.name, PodName: row.PodName, Mounted: context, Wanted: row.SELinuxLabel,
		}
	}
	return nil
}

// mountedContext returns the SELinux context with which the volume is, or may be, mounted, and false when it is not.
func (v *view) mountedContext() (string, bool) {
	switch {
	case v.actual.DeviceMountState != operationexecutor.DeviceNotMounted:
		return v.actual.SELinuxMountContext, true
	case len(v.actual.Mounts) > 0:
		return v.actual.Mounts[0].SELinuxMountContext, true
	}
	return "", false
}

func modeOf(spec *volume.Spec) string {
	if volume.IsBlock(spec) {
		return "device"
	}
	return "filesystem"
}
