package cache

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// PodExistsInVolume decides what a volume needs before a pod can use it as it wants: with at least that size in bytes
// (zero: any) and mounted with that SELinux context (empty: none). It returns the path of the device beside each answer,
// as far as it is known. What comes first counts:
//
//   - [ErrNotAttached]: it is not attached, or may not be: attach it.
//   - [ErrSELinuxMismatch], a [*SELinuxMountMismatchError]: wait until it is unmounted from all others.
//   - false and no error: it is not set up, or may not be, or is not staged for certain: mount it.
//   - true and [ErrRemountRequired]: it can be used, and is to be set up again.
//   - true and [ErrFsResizeRequired], a [*FsResizeRequiredError]: it can be used, and is to be expanded. That is not asked
//     of a plugin that does not expand on the node, of a volume whose size here is not known, nor of one that cannot be
//     expanded while it is used (MarkForInUseExpansionError).
//   - true and no error: it is as it should be.
func (a *ActualStateOfWorld) PodExistsInVolume(podName volume.UniquePodName, volumeName v1.UniqueVolumeName, desiredVolumeSize resource.Quantity, seLinuxLabel string) (mounted bool, devicePath string, err error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	v := a.volumes[volumeName]
	if v == nil || v.attach != Attached {
		return false, "", fmt.Errorf("volume %q: %w", volumeName, ErrNotAttached)
	}
	if context, ok := v.mountedContext(); ok && context != seLinuxLabel {
		return false, v.devicePath, &SELinuxMountMismatchError{
			VolumeName: volumeName, PodName: podName, Mounted: context, Wanted: seLinuxLabel,
		}
	}
	m := v.mountOf(podName)
	switch {
	case m.stateOrNone() != operationexecutor.VolumeMounted || v.meets(isStaged) != nil:
		return false, v.devicePath, nil
	case m.RemountRequired:
		return true, v.devicePath, fmt.Errorf("volume %q of pod %q: %w", volumeName, podName, ErrRemountRequired)
	case v.mustGrow(desiredVolumeSize):
		return true, v.devicePath, &FsResizeRequiredError{
			VolumeName: volumeName, PodName: podName, CurrentSize: v.expansion.size, DesiredSize: desiredVolumeSize,
		}
	}
	return true, v.devicePath, nil
}

// mountedContext returns the SELinux context with which the volume is, or may be, mounted anywhere on this node, and
// false when it is not mounted.
func (v *knownVolume) mountedContext() (string, bool) {
	switch {
	case !v.plugin.seLinuxMount:
		return "", false // It is never mounted with one.
	case v.device != operationexecutor.DeviceNotMounted:
		return v.seLinuxMountContext, true
	case len(v.mounts) > 0:
		return v.mounts[0].SELinuxMountContext, true
	}
	return "", false
}

// mustGrow reports whether the volume is to be expanded here to have that size.
func (v *knownVolume) mustGrow(desired resource.Quantity) bool {
	current := v.expansion.size // A copy: to compare may change it.
	return v.plugin.nodeExpandable && !v.expansion.notInUse && !current.IsZero() && desired.Cmp(current) > 0
}
