package cache

import (
	"cmp"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/rows"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// MarkVolumeAsMounted implements the executor's mounter updater. What mounted leaves out stays as it was, but for the
// SELinux context: empty says that the volume is mounted without.
func (a *ActualStateOfWorld) MarkVolumeAsMounted(mounted operationexecutor.MountedVolume) error {
	a.learn(mounted.VolumeName, mounted.VolumeSpec) // Before the move, which needs to know whether an update during the set-up counts.
	return a.updateKnown(mounted.VolumeName, func(v *knownVolume) error { return a.moveMount(v, succeeded, &mounted) })
}

// MarkVolumeMountAsUncertain implements the executor's mounter updater. What mounted leaves out stays as it was.
func (a *ActualStateOfWorld) MarkVolumeMountAsUncertain(mounted operationexecutor.MountedVolume) error {
	return a.updateKnown(mounted.VolumeName, func(v *knownVolume) error { return a.moveMount(v, unproven, &mounted) })
}

// MarkVolumeAsUnmounted implements the executor's mounter updater. A pod that did not have the volume is no error.
func (a *ActualStateOfWorld) MarkVolumeAsUnmounted(podName volume.UniquePodName, volumeName v1.UniqueVolumeName) error {
	return a.updateKnown(volumeName, func(v *knownVolume) error {
		m := v.mountOf(podName)
		if m == nil {
			return errUnchanged
		}
		if _, err := podMoves.next(v, m.State, undone); err != nil {
			return err
		}
		v.mounts = rows.Remove(v.mounts, podName, (*podMount).comparePod)
		rows.SetList(a.pods, podName, rows.Remove(a.pods[podName], volumeName, (*podMount).compareVolume))
		return nil
	})
}

func (a *ActualStateOfWorld) moveMount(v *knownVolume, e event, mounted *operationexecutor.MountedVolume) error {
	m := v.mountOf(mounted.PodName)
	state, err := podMoves.next(v, m.stateOrNone(), e)
	if err != nil {
		return err
	}
	if m == nil {
		m = &podMount{volume: v}
		m.PodName, m.Reconstructed = mounted.PodName, e == found
		v.mounts = rows.Insert(v.mounts, m, m.PodName, (*podMount).comparePod)
		a.pods[m.PodName] = rows.Insert(a.pods[m.PodName], m, v.name, (*podMount).compareVolume)
	}
	m.State = state
	m.learn(mounted)
	if e == succeeded {
		m.Reconstructed, m.SELinuxMountContext = false, mounted.SELinuxMountContext
		m.RemountRequired = v.plugin.remountable && a.settingUp.isOutdated(v.name, m.PodName)
	}
	return nil
}

// mountOf returns the set-up for a pod, or nil.
func (v *knownVolume) mountOf(podName volume.UniquePodName) *podMount {
	return rows.Find(v.mounts, podName, (*podMount).comparePod)
}

// stateOrNone is the state of a set-up, which may be nil.
func (m *podMount) stateOrNone() operationexecutor.VolumeMountState {
	if m == nil {
		return operationexecutor.VolumeNotMounted
	}
	return m.State
}

// learn takes over what mounted says. What it leaves out stays.
func (m *podMount) learn(mounted *operationexecutor.MountedVolume) {
	if mounted.VolumeSpec != nil {
		m.VolumeSpec = mounted.VolumeSpec
	}
	if len(mounted.OuterVolumeSpecNames) > 0 {
		m.OuterVolumeSpecNames = mounted.OuterVolumeSpecNames
	}
	if mounted.Mounter != nil {
		m.Mounter = mounted.Mounter
	}
	if mounted.BlockVolumeMapper != nil {
		m.BlockVolumeMapper = mounted.BlockVolumeMapper
	}
	m.PodUID = cmp.Or(mounted.PodUID, m.PodUID)
	m.Pod = cmp.Or(mounted.Pod, m.Pod)
	m.MountPath = cmp.Or(mounted.MountPath, m.MountPath)
	m.SELinuxMountContext = cmp.Or(mounted.SELinuxMountContext, m.SELinuxMountContext)
	m.VolumeGidValue = cmp.Or(mounted.VolumeGidValue, m.VolumeGidValue)
	m.Incarnation = cmp.Or(mounted.Incarnation, m.Incarnation)
}

// learn asks the plugin of a volume what it can do, where that is not known because a restart found the volume.
func (a *ActualStateOfWorld) learn(volumeName v1.UniqueVolumeName, spec *volume.Spec) {
	if spec == nil || !a.mustLearn(volumeName) {
		return
	}
	facts, err := factsOf(a.plugins, spec, volumeName)
	if err != nil {
		return
	}
	_ = a.update(volumeName, func(v *knownVolume) error {
		if v == nil || v.plugin == v.plugin.learn(facts) {
			return errUnchanged
		}
		v.plugin = v.plugin.learn(facts)
		return nil
	})
}

// mustLearn reports whether a volume is known, but not what its plugin can do.
func (a *ActualStateOfWorld) mustLearn(volumeName v1.UniqueVolumeName) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	v := a.volumes[volumeName]
	return v != nil && !v.plugin.asked
}

// GetVolumeMountState implements the executor's mounter updater.
func (a *ActualStateOfWorld) GetVolumeMountState(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) operationexecutor.VolumeMountState {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.mount(volumeName, podName).stateOrNone()
}

// IsVolumeReconstructed implements the executor's mounter updater. An empty podName asks for the staging.
func (a *ActualStateOfWorld) IsVolumeReconstructed(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) bool {
	if podName == "" {
		return a.isDeviceReconstructed(volumeName)
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	m := a.mount(volumeName, podName)
	return m != nil && m.Reconstructed
}

// isDeviceReconstructed reports whether the staging was found after a restart and nothing has succeeded on it since.
func (a *ActualStateOfWorld) isDeviceReconstructed(volumeName v1.UniqueVolumeName) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	v := a.volumes[volumeName]
	return v != nil && v.deviceReconstructed
}

// PodsOfVolume implements operationexecutor.VolumeUsers; sorted.
func (a *ActualStateOfWorld) PodsOfVolume(volumeName v1.UniqueVolumeName) []volume.UniquePodName {
	a.mu.RLock()
	defer a.mu.RUnlock()
	v := a.volumes[volumeName]
	if v == nil {
		return nil
	}
	names := make([]volume.UniquePodName, 0, len(v.mounts))
	for _, m := range v.mounts {
		names = append(names, m.PodName)
	}
	return names
}

// MarkRemountRequired says that the pod was updated: each of its mounted volumes whose plugin wants it is to be set up
// again. What the plugin wants was asked when the volume was attached.
func (a *ActualStateOfWorld) MarkRemountRequired(podName volume.UniquePodName) {
	a.options.changed(a.setRemountRequired(podName)...)
}

func (a *ActualStateOfWorld) setRemountRequired(podName volume.UniquePodName) (changed []v1.UniqueVolumeName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.settingUp.outdate(podName)
	for _, m := range a.pods[podName] {
		if m.volume.plugin.remountable && m.State == operationexecutor.VolumeMounted && !m.RemountRequired {
			m.RemountRequired = true
			changed = append(changed, m.volume.name)
		}
	}
	return changed
}

// MarkPodRemoved says that the pod was removed: what was found for it after a restart is for no pod that comes with the same
// UID. What else is set up for it is known by its incarnation.
func (a *ActualStateOfWorld) MarkPodRemoved(podName volume.UniquePodName) {
	a.options.changed(a.setRemoved(podName)...)
}

func (a *ActualStateOfWorld) setRemoved(podName volume.UniquePodName) (changed []v1.UniqueVolumeName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range a.pods[podName] {
		if m.Incarnation == 0 {
			m.Incarnation = incarnationRemoved
			changed = append(changed, m.volume.name)
		}
	}
	return changed
}
