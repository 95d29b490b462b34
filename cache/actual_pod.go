package cache

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// MarkVolumeAsMounted implements the executor's mounter updater. What opts leaves out stays as it was, but for the
// SELinux context: empty says that the volume is mounted without.
func (a *ActualStateOfWorld) MarkVolumeAsMounted(opts operationexecutor.MarkVolumeOpts) error {
	asked := true
	err := a.updateKnown(opts.VolumeName, func(v *knownVolume) error {
		asked = v.plugin.asked
		return a.moveMount(v, succeeded, &opts)
	})
	if err == nil && !asked {
		a.learn(opts.VolumeName, opts.VolumeSpec)
	}
	return err
}

// MarkVolumeMountAsUncertain implements the executor's mounter updater. What opts leaves out stays as it was.
func (a *ActualStateOfWorld) MarkVolumeMountAsUncertain(opts operationexecutor.MarkVolumeOpts) error {
	return a.updateKnown(opts.VolumeName, func(v *knownVolume) error { return a.moveMount(v, doubted, &opts) })
}

// MarkVolumeAsUnmounted implements the executor's mounter updater. A pod that did not have the volume is no error.
func (a *ActualStateOfWorld) MarkVolumeAsUnmounted(podName volume.UniquePodName, volumeName v1.UniqueVolumeName) error {
	return a.updateKnown(volumeName, func(v *knownVolume) error {
		x := v.mounts.find(podName)
		if x == nil {
			return errUnchanged
		}
		if _, err := podMoves.next(v, x.row.Load().State, undone); err != nil {
			return err
		}
		a.dropMount(v, x)
		return nil
	})
}

func (a *ActualStateOfWorld) moveMount(v *knownVolume, e event, opts *operationexecutor.MarkVolumeOpts) error {
	old := v.mounts.get(opts.PodName)
	state, err := podMoves.next(v, old.state(), e)
	if err != nil {
		return err
	}
	m := v.newMount(opts)
	m.State, m.Reconstructed = state, e == found
	if old != nil {
		m.fill(old)
	}
	if e == succeeded {
		m.Reconstructed, m.SELinuxMountContext = false, opts.SELinuxMountContext
		m.RemountRequired = v.plugin.remountable && a.settingUp[opts.PodName].of(v.name).isOutdated()
	}
	a.setMount(v, m, old)
	return nil
}

// state is the state of a set-up, which may be nil.
func (m *MountedVolume) state() operationexecutor.VolumeMountState {
	if m == nil {
		return operationexecutor.VolumeNotMounted
	}
	return m.State
}

// newMount returns the row of a set-up that opts tell of.
func (v *knownVolume) newMount(opts *operationexecutor.MarkVolumeOpts) *MountedVolume {
	return &MountedVolume{MountedVolume: operationexecutor.MountedVolume{
		PodName:              opts.PodName,
		PodUID:               opts.PodUID,
		Pod:                  opts.Pod,
		VolumeName:           v.name,
		InnerVolumeSpecName:  opts.VolumeSpec.Name(),
		OuterVolumeSpecNames: opts.OuterVolumeSpecNames,
		PluginName:           v.plugin.name,
		VolumeSpec:           opts.VolumeSpec,
		Mounter:              opts.Mounter,
		BlockVolumeMapper:    opts.BlockVolumeMapper,
		MountPath:            opts.MountPath,
		SELinuxMountContext:  opts.SELinuxMountContext,
		VolumeGidValue:       opts.VolumeGidValue,
		DeviceMountPath:      v.deviceMountPath,
		DevicePath:           v.devicePath,
		Incarnation:          opts.Incarnation,
	}}
}

// fill takes over from old what is not known of m.
func (m *MountedVolume) fill(old *MountedVolume) {
	m.Reconstructed, m.RemountRequired = old.Reconstructed, old.RemountRequired
	if m.VolumeSpec == nil {
		m.VolumeSpec, m.InnerVolumeSpecName = old.VolumeSpec, old.InnerVolumeSpecName
	}
	if len(m.OuterVolumeSpecNames) == 0 {
		m.OuterVolumeSpecNames = old.OuterVolumeSpecNames
	}
	orElse(&m.PodUID, old.PodUID)
	orElse(&m.Pod, old.Pod)
	orElse(&m.MountPath, old.MountPath)
	orElse(&m.SELinuxMountContext, old.SELinuxMountContext)
	orElse(&m.VolumeGidValue, old.VolumeGidValue)
	orElse(&m.Incarnation, old.Incarnation)
	if m.Mounter == nil {
		m.Mounter = old.Mounter
	}
	if m.BlockVolumeMapper == nil {
		m.BlockVolumeMapper = old.BlockVolumeMapper
	}
}

// orElse makes *value other when it is the zero value.
func orElse[T comparable](value *T, other T) {
	var zero T
	if *value == zero {
		*value = other
	}
}

// learn asks the plugin of a volume what it can do, where that is not known because a restart found the volume.
func (a *ActualStateOfWorld) learn(volumeName v1.UniqueVolumeName, spec *volume.Spec) {
	if spec == nil {
		return
	}
	if facts, err := factsOf(a.plugins, spec, volumeName); err == nil {
		a.setFacts(volumeName, facts)
	}
}

func (a *ActualStateOfWorld) setFacts(volumeName v1.UniqueVolumeName, facts pluginFacts) {
	_ = a.update(volumeName, func(v *knownVolume) error {
		if v == nil || v.plugin == v.plugin.learn(facts) {
			return errUnchanged
		}
		v.setFacts(v.plugin.learn(facts))
		return nil
	})
}

// RefreshPlugin asks a plugin once more what it can do for each of its volumes: its driver has changed its mind, say.
// Whether they are to be unstaged and detached stays as it was: that is a matter of what was done. A volume about which
// it cannot be asked stays as it was.
func (a *ActualStateOfWorld) RefreshPlugin(pluginName string) {
	for _, row := range a.GetVolumesOfPlugin(pluginName) {
		if row.VolumeSpec == nil {
			continue
		}
		if facts, err := factsOf(a.plugins, row.VolumeSpec, row.VolumeName); err == nil {
			a.setFacts(row.VolumeName, facts)
		}
	}
}

// GetVolumeMountState implements the executor's mounter updater.
func (a *ActualStateOfWorld) GetVolumeMountState(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) operationexecutor.VolumeMountState {
	return a.mount(volumeName, podName).state()
}

// IsVolumeReconstructed implements the executor's mounter updater. An empty podName asks for the staging.
func (a *ActualStateOfWorld) IsVolumeReconstructed(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) bool {
	if podName == "" {
		return a.IsVolumeDeviceReconstructed(volumeName)
	}
	m := a.mount(volumeName, podName)
	return m != nil && m.Reconstructed
}

// IsVolumeDeviceReconstructed reports whether the staging was found after a restart and nothing has succeeded on it since.
func (a *ActualStateOfWorld) IsVolumeDeviceReconstructed(volumeName v1.UniqueVolumeName) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	v := a.volumes[volumeName]
	return v != nil && v.deviceReconstructed
}

// IsVolumeMountedElsewhere reports whether the volume is, or may be, set up for any other pod.
func (a *ActualStateOfWorld) IsVolumeMountedElsewhere(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	v := a.volumes[volumeName]
	if v == nil {
		return false
	}
	others := v.mounts.count
	if v.mounts.find(podName) != nil {
		others--
	}
	return others > 0
}

// PodsOfVolume implements operationexecutor.VolumeUsers; sorted.
func (a *ActualStateOfWorld) PodsOfVolume(volumeName v1.UniqueVolumeName) []volume.UniquePodName {
	a.mu.RLock()
	defer a.mu.RUnlock()
	v := a.volumes[volumeName]
	if v == nil {
		return nil
	}
	names := make([]volume.UniquePodName, 0, v.mounts.count)
	for x := range v.mounts.all {
		names = append(names, x.pod)
	}
	slices.Sort(names)
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
	for s := a.settingUp[podName]; s != nil; s = s.next {
		s.outdated = true
	}
	for x := range a.mounts.byPod[podName].all {
		if !x.refreshable {
			continue
		}
		m := *x.row.Load()
		m.RemountRequired = true
		x.row.Store(&m)
		x.refreshable = false
		changed = append(changed, m.VolumeName)
	}
	slices.Sort(changed)
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
	for x := range a.mounts.byPod[podName].all {
		if m := *x.row.Load(); m.Incarnation == 0 {
			m.Incarnation = incarnationRemoved
			x.row.Store(&m)
			changed = append(changed, m.VolumeName)
		}
	}
	slices.Sort(changed)
	return changed
}

// WatchSetUp implements operationexecutor.SetUpWatcher: an update of the pod while the volume is being set up makes it
// necessary to set it up once more.
func (a *ActualStateOfWorld) WatchSetUp(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) (end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := &setUp{volume: volumeName, next: a.settingUp[podName]}
	a.settingUp[podName] = s
	return func() { a.setUpEnded(podName, s) }
}

// setUp is a volume that is being set up for a pod.
type setUp struct {
	volume v1.UniqueVolumeName
	// outdated says that the pod was updated since that began.
	outdated bool
	next     *setUp // of the same pod
}

// of returns that of a volume, or nil.
func (s *setUp) of(name v1.UniqueVolumeName) *setUp {
	for s != nil && s.volume != name {
		s = s.next
	}
	return s
}

func (s *setUp) isOutdated() bool { return s != nil && s.outdated }

func (a *ActualStateOfWorld) setUpEnded(podName volume.UniquePodName, ended *setUp) {
	a.mu.Lock()
	defer a.mu.Unlock()
	first := a.settingUp[podName]
	if first == ended && ended.next == nil {
		delete(a.settingUp, podName)
		return
	}
	if first == ended {
		a.settingUp[podName] = ended.next
		return
	}
	for first.next != ended {
		first = first.next
	}
	first.next = ended.next
}

// setRefreshable notes in a pair whether an update of its pod makes it necessary to set the volume up again.
func (v *knownVolume) setRefreshable(x *pair[MountedVolume]) {
	m := x.row.Load()
	x.refreshable = v.plugin.remountable && m.State == operationexecutor.VolumeMounted && !m.RemountRequired
}
