package cache

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// MarkVolumeAsMounted implements the executor's mounter updater. What opts leaves out stays as it was.
func (a *ActualStateOfWorld) MarkVolumeAsMounted(opts operationexecutor.MarkVolumeOpts) error {
	return a.markMount(succeeded, opts)
}

// MarkVolumeMountAsUncertain implements the executor's mounter updater. What opts leaves out stays as it was.
func (a *ActualStateOfWorld) MarkVolumeMountAsUncertain(opts operationexecutor.MarkVolumeOpts) error {
	return a.markMount(doubted, opts)
}

// MarkVolumeAsUnmounted implements the executor's mounter updater. A pod that did not have the volume is no error.
func (a *ActualStateOfWorld) MarkVolumeAsUnmounted(podName volume.UniquePodName, volumeName v1.UniqueVolumeName) error {
	return a.updateKnown(volumeName, func(v *knownVolume) error {
		if v.pods[podName] == nil {
			return errUnchanged
		}
		if _, err := podMoves.next(v, v.mountState(podName), undone); err != nil {
			return err
		}
		delete(v.pods, podName)
		delete(a.pods[podName], volumeName)
		if len(a.pods[podName]) == 0 {
			delete(a.pods, podName)
		}
		return nil
	})
}

func (a *ActualStateOfWorld) markMount(e event, opts operationexecutor.MarkVolumeOpts) error {
	return a.updateKnown(opts.VolumeName, func(v *knownVolume) error { return a.moveMount(v, e, opts) })
}

func (a *ActualStateOfWorld) moveMount(v *knownVolume, e event, opts operationexecutor.MarkVolumeOpts) error {
	state, err := podMoves.next(v, v.mountState(opts.PodName), e)
	if err != nil {
		return err
	}
	m := v.pods[opts.PodName]
	if m == nil {
		m = &knownMount{reconstructed: e == found}
		v.pods[opts.PodName] = m
	}
	m.opts, m.state = filled(opts, m.opts), state
	if e == succeeded {
		m.reconstructed, m.remountRequired = false, false
	}
	if a.pods[opts.PodName] == nil {
		a.pods[opts.PodName] = map[v1.UniqueVolumeName]struct{}{}
	}
	a.pods[opts.PodName][opts.VolumeName] = struct{}{}
	return nil
}

// filled returns opts with what it leaves out taken from old.
func filled(opts, old operationexecutor.MarkVolumeOpts) operationexecutor.MarkVolumeOpts {
	if opts.PodUID == "" {
		opts.PodUID = old.PodUID
	}
	if opts.Pod == nil {
		opts.Pod = old.Pod
	}
	if opts.VolumeSpec == nil {
		opts.VolumeSpec = old.VolumeSpec
	}
	if len(opts.OuterVolumeSpecNames) == 0 {
		opts.OuterVolumeSpecNames = old.OuterVolumeSpecNames
	}
	if opts.Mounter == nil {
		opts.Mounter = old.Mounter
	}
	if opts.BlockVolumeMapper == nil {
		opts.BlockVolumeMapper = old.BlockVolumeMapper
	}
	if opts.SELinuxMountContext == "" {
		opts.SELinuxMountContext = old.SELinuxMountContext
	}
	if opts.VolumeGidValue == "" {
		opts.VolumeGidValue = old.VolumeGidValue
	}
	return opts
}

func (v *knownVolume) mountState(podName volume.UniquePodName) operationexecutor.VolumeMountState {
	if m := v.pods[podName]; m != nil {
		return m.state
	}
	return operationexecutor.VolumeNotMounted
}

// GetVolumeMountState implements the executor's mounter updater.
func (a *ActualStateOfWorld) GetVolumeMountState(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) operationexecutor.VolumeMountState {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if v := a.volumes[volumeName]; v != nil {
		return v.mountState(podName)
	}
	return operationexecutor.VolumeNotMounted
}

// IsVolumeReconstructed implements the executor's mounter updater. An empty podName asks for the staging.
func (a *ActualStateOfWorld) IsVolumeReconstructed(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	v := a.volumes[volumeName]
	switch {
	case v == nil:
		return false
	case podName == "":
		return v.deviceReconstructed
	}
	m := v.pods[podName]
	return m != nil && m.reconstructed
}

// PodsOfVolume implements operationexecutor.VolumeUsers; sorted.
func (a *ActualStateOfWorld) PodsOfVolume(volumeName v1.UniqueVolumeName) []volume.UniquePodName {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if v := a.volumes[volumeName]; v != nil {
		return slices.Sorted(maps.Keys(v.pods))
	}
	return nil
}

// MarkRemountRequired says that the pod was updated: each of its mounted volumes whose plugin wants it is to be set up
// again. A plugin that cannot be asked does not get it.
func (a *ActualStateOfWorld) MarkRemountRequired(podName volume.UniquePodName) {
	var names []v1.UniqueVolumeName
	for _, m := range a.GetMountedVolumesForPod(podName) {
		if remount, err := a.plugins.RequiresRemount(m.VolumeSpec); err == nil && remount {
			names = append(names, m.VolumeName)
		}
	}
	a.options.changed(a.setRemountRequired(podName, names)...)
}

func (a *ActualStateOfWorld) setRemountRequired(podName volume.UniquePodName, names []v1.UniqueVolumeName) (changed []v1.UniqueVolumeName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range names {
		v := a.volumes[name]
		if v == nil || v.mountState(podName) != operationexecutor.VolumeMounted || v.pods[podName].remountRequired {
			continue
		}
		v.pods[podName].remountRequired = true
		changed = append(changed, name)
	}
	return changed
}
