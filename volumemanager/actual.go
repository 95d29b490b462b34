package volumemanager

import (
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// actualState is the actual state of the world that wakes those who wait for a pod when something becomes of one of its
// volumes.
type actualState struct {
	*cache.ActualStateOfWorld
	changes *broadcast
}

var (
	_ operationexecutor.ActualStateOfWorldMounterUpdater  = actualState{}
	_ operationexecutor.ActualStateOfWorldAttacherUpdater = actualState{}
	_ operationexecutor.VolumeUsers                       = actualState{}
)

// MarkVolumeAsMounted implements the executor's mounter updater.
func (a actualState) MarkVolumeAsMounted(opts operationexecutor.MarkVolumeOpts) error {
	defer a.changes.notify(opts.PodName)
	return a.ActualStateOfWorld.MarkVolumeAsMounted(opts)
}

// MarkVolumeMountAsUncertain implements the executor's mounter updater.
func (a actualState) MarkVolumeMountAsUncertain(opts operationexecutor.MarkVolumeOpts) error {
	defer a.changes.notify(opts.PodName)
	return a.ActualStateOfWorld.MarkVolumeMountAsUncertain(opts)
}

// MarkVolumeAsUnmounted implements the executor's mounter updater.
func (a actualState) MarkVolumeAsUnmounted(podName volume.UniquePodName, volumeName v1.UniqueVolumeName) error {
	defer a.changes.notify(podName)
	return a.ActualStateOfWorld.MarkVolumeAsUnmounted(podName, volumeName)
}
