package volumemanager

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/changes"
	"github.com/volumekit/volumekit/volumemanager/internal/mounter"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// actualState is the actual state of the world. It also wakes the waiters for a pod when the state of one of its volumes
// changes.
type actualState struct {
	*cache.ActualStateOfWorld
	changes *changes.Hub
	// forgot is called with each volume that was detached. err says why the state could not forget it, or is nil.
	forgot func(name v1.UniqueVolumeName, err error)
	// made is called with each new mount, before the state changes.
	made func(h podvolume.Key, path string)
	// gone is called with each set-up that is gone, after the state has changed.
	gone func(h podvolume.Key)
}

var (
	_ operationexecutor.ActualStateOfWorldMounterUpdater  = (*actualState)(nil)
	_ operationexecutor.ActualStateOfWorldAttacherUpdater = (*actualState)(nil)
	_ operationexecutor.VolumeUsers                       = (*actualState)(nil)
)

// MarkVolumeAsMounted implements the executor's mounter updater. It queries the mounter once and keeps the answers for later
// queries. If the mounter panics, the volume does not count as set up.
func (a *actualState) MarkVolumeAsMounted(v operationexecutor.MountedVolume) error {
	defer a.changes.Notify(v.PodName)
	if v.Mounter != nil {
		queried, err := mounter.Query(v.Mounter)
		if err != nil {
			return fmt.Errorf("where volume %q is set up is not known: %w", v.VolumeName, err)
		}
		v.Mounter = queried
		a.made(podvolume.Key{Volume: v.VolumeName, Pod: v.PodName}, v.MountPath)
	}
	return a.ActualStateOfWorld.MarkVolumeAsMounted(v)
}

// MarkDeviceAsMounted implements the executor's mounter updater.
func (a *actualState) MarkDeviceAsMounted(volumeName v1.UniqueVolumeName, devicePath, deviceMountPath, seLinuxMountContext string) error {
	a.made(podvolume.Key{Volume: volumeName}, deviceMountPath)
	return a.ActualStateOfWorld.MarkDeviceAsMounted(volumeName, devicePath, deviceMountPath, seLinuxMountContext)
}

// MarkVolumeAsDetached implements the executor's attacher updater, which returns no error. forgot gets the error: otherwise
// it would show only in that the volume is detached again.
func (a *actualState) MarkVolumeAsDetached(volumeName v1.UniqueVolumeName, nodeName types.NodeName) {
	err := a.RemoveVolumeFromReportAsAttached(volumeName, nodeName) // It checks that this is the state's own node.
	if err == nil {
		err = a.DeleteVolume(volumeName)
	}
	a.forgot(volumeName, err)
}

// MarkVolumeMountAsUncertain implements the executor's mounter updater.
func (a *actualState) MarkVolumeMountAsUncertain(v operationexecutor.MountedVolume) error {
	defer a.changes.Notify(v.PodName)
	return a.ActualStateOfWorld.MarkVolumeMountAsUncertain(v)
}

// MarkVolumeAsUnmounted implements the executor's mounter updater.
func (a *actualState) MarkVolumeAsUnmounted(podName volume.UniquePodName, volumeName v1.UniqueVolumeName) error {
	defer a.changes.Notify(podName)
	err := a.ActualStateOfWorld.MarkVolumeAsUnmounted(podName, volumeName)
	if err == nil {
		a.gone(podvolume.Key{Volume: volumeName, Pod: podName})
	}
	return err
}

// markUncertain marks a certain set-up or staging as uncertain, and reports whether it did.
func (a *actualState) markUncertain(h podvolume.Key) bool {
	if h.Pod == "" {
		row, ok := a.GetAttachedVolume(h.Volume)
		return ok && row.DeviceMountState == operationexecutor.DeviceGloballyMounted &&
			a.MarkDeviceAsUncertain(h.Volume, row.DevicePath, row.DeviceMountPath, row.SELinuxMountContext) == nil
	}
	row, ok := a.GetMountedVolume(h.Volume, h.Pod)
	return ok && row.State == operationexecutor.VolumeMounted && a.MarkVolumeMountAsUncertain(row.MountedVolume) == nil
}
