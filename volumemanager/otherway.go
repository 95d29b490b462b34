package volumemanager

import (
	"fmt"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// This file holds what keeps a volume from being used in two ways at once: as a filesystem and as a device, or mounted
// with two SELinux contexts. Who comes second waits until the volume was released.

// mustWait reports whether a pod wants the volume in another way than it is here, and keeps why.
func (s *subject) mustWait(row *operationexecutor.VolumeToMount) bool {
	err := s.otherWay(row)
	if err == nil {
		return false
	}
	if s.waits == nil {
		s.waits = make(map[volume.UniquePodName]error, 1)
	}
	s.waits[row.PodName] = err
	return true
}

// otherWay returns why a pod cannot have the volume as it is here, or nil.
func (s *subject) otherWay(row *operationexecutor.VolumeToMount) error {
	if !s.known {
		return nil
	}
	if here := s.actual.VolumeSpec; here != nil && isBlock(here) != isBlock(row.VolumeSpec) {
		return fmt.Errorf("volume %q is here as a %s and pod %q wants it as a %s: it waits until all others have given it up: %w",
			s.name, wayOf(here), row.PodName, wayOf(row.VolumeSpec), volume.ErrInUse)
	}
	if context, ok := s.mountedContext(); ok && context != row.SELinuxLabel {
		return &cache.SELinuxMountMismatchError{
			VolumeName: s.name, PodName: row.PodName, Mounted: context, Wanted: row.SELinuxLabel,
		}
	}
	return nil
}

// mountedContext returns the SELinux context with which the volume is, or may be, mounted, and false when it is not.
func (s *subject) mountedContext() (string, bool) {
	switch {
	case s.actual.DeviceMountState != operationexecutor.DeviceNotMounted:
		return s.actual.SELinuxMountContext, true
	case len(s.actual.Mounts) > 0:
		return s.actual.Mounts[0].SELinuxMountContext, true
	}
	return "", false
}

func wayOf(spec *volume.Spec) string {
	if isBlock(spec) {
		return "device"
	}
	return "filesystem"
}
