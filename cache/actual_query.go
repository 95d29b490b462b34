package cache

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// AttachedVolume is what is known of a volume on this node, beside its pods.
type AttachedVolume struct {
	operationexecutor.AttachedVolume
	// PluginIsDeviceMountable says that the volume is one that is staged.
	PluginIsDeviceMountable bool
	// AttachState is what is known of the attachment. A volume that needs no attaching is attached.
	AttachState AttachState
	// DeviceMountState is what is known of the staging.
	DeviceMountState operationexecutor.DeviceMountState
	// DeviceReconstructed says that the staging was found after a restart and that nothing has succeeded on it since.
	DeviceReconstructed bool
	// PodCount is the number of pods for which the volume is, or may be, set up.
	PodCount int
}

// MountedVolume is what is known of a volume that is, or may be, set up for a pod.
type MountedVolume struct {
	operationexecutor.MountedVolume
	// State is mounted or uncertain.
	State operationexecutor.VolumeMountState
	// RemountRequired says that the volume is mounted and has to be set up again because the pod was updated.
	RemountRequired bool
	// Reconstructed says that the set-up was found after a restart and that nothing has succeeded on it since.
	Reconstructed bool
}

// VolumeSnapshot is all that is known of one volume at one moment.
type VolumeSnapshot struct {
	AttachedVolume
	// Mounts are its set-ups, by the pod's name.
	Mounts []MountedVolume
}

// Snapshot returns all that is known of a volume, and false when nothing is.
func (a *ActualStateOfWorld) Snapshot(volumeName v1.UniqueVolumeName) (VolumeSnapshot, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	v := a.volumes[volumeName]
	if v == nil {
		return VolumeSnapshot{}, false
	}
	return VolumeSnapshot{AttachedVolume: a.row(v), Mounts: v.mounts()}, true
}

// VolumeExists reports whether the volume is, or may be, attached.
func (a *ActualStateOfWorld) VolumeExists(volumeName v1.UniqueVolumeName) bool {
	_, ok := a.GetAttachedVolume(volumeName)
	return ok
}

// GetAttachedVolume returns what is known of a volume, and false when nothing is.
func (a *ActualStateOfWorld) GetAttachedVolume(volumeName v1.UniqueVolumeName) (AttachedVolume, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if v := a.volumes[volumeName]; v != nil {
		return a.row(v), true
	}
	return AttachedVolume{}, false
}

// GetAttachedVolumes returns every volume that is known, by name.
func (a *ActualStateOfWorld) GetAttachedVolumes() []AttachedVolume {
	return a.attached(func(*knownVolume) bool { return true })
}

// GetGloballyMountedVolumes returns the volumes that are staged for certain, by name.
func (a *ActualStateOfWorld) GetGloballyMountedVolumes() []AttachedVolume {
	return a.attached(func(v *knownVolume) bool { return v.device == operationexecutor.DeviceGloballyMounted })
}

// GetUnmountedVolumes returns the volumes that are not, and may not be, set up for any pod, by name.
func (a *ActualStateOfWorld) GetUnmountedVolumes() []AttachedVolume {
	return a.attached(func(v *knownVolume) bool { return len(v.pods) == 0 })
}

func (a *ActualStateOfWorld) attached(keep func(*knownVolume) bool) []AttachedVolume {
	a.mu.RLock()
	defer a.mu.RUnlock()
	var rows []AttachedVolume
	for _, name := range slices.Sorted(maps.Keys(a.volumes)) {
		if v := a.volumes[name]; keep(v) {
			rows = append(rows, a.row(v))
		}
	}
	return rows
}

func (a *ActualStateOfWorld) row(v *knownVolume) AttachedVolume {
	return AttachedVolume{
		AttachedVolume: operationexecutor.AttachedVolume{
			VolumeName:          v.name,
			VolumeSpec:          v.spec,
			NodeName:            a.nodeName,
			PluginName:          v.plugin.name,
			PluginIsAttachable:  v.plugin.attachable,
			DevicePath:          v.devicePath,
			DeviceMountPath:     v.deviceMountPath,
			SELinuxMountContext: v.seLinuxMountContext,
		},
		PluginIsDeviceMountable: v.plugin.deviceMountable,
		AttachState:             v.attach,
		DeviceMountState:        v.device,
		DeviceReconstructed:     v.deviceReconstructed,
		PodCount:                len(v.pods),
	}
}

// GetMountedVolume returns what is known of a volume's set-up for a pod, uncertain ones included, and false when there is
// none.
func (a *ActualStateOfWorld) GetMountedVolume(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) (MountedVolume, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	v := a.volumes[volumeName]
	if v == nil || v.pods[podName] == nil {
		return MountedVolume{}, false
	}
	return v.mount(podName), true
}

// GetMountedVolumes returns every set-up that is there for certain, by volume and pod.
func (a *ActualStateOfWorld) GetMountedVolumes() []MountedVolume {
	return slices.DeleteFunc(a.GetAllMountedVolumes(), notMounted)
}

// GetAllMountedVolumes returns every set-up, uncertain ones included, by volume and pod.
func (a *ActualStateOfWorld) GetAllMountedVolumes() []MountedVolume {
	a.mu.RLock()
	defer a.mu.RUnlock()
	var rows []MountedVolume
	for _, name := range slices.Sorted(maps.Keys(a.volumes)) {
		rows = append(rows, a.volumes[name].mounts()...)
	}
	return rows
}

// GetMountedVolumesForPod returns the volumes that are set up for a pod for certain, by name.
func (a *ActualStateOfWorld) GetMountedVolumesForPod(podName volume.UniquePodName) []MountedVolume {
	return slices.DeleteFunc(a.GetPossiblyMountedVolumesForPod(podName), notMounted)
}

// GetPossiblyMountedVolumesForPod returns the volumes that are, or may be, set up for a pod, by name.
func (a *ActualStateOfWorld) GetPossiblyMountedVolumesForPod(podName volume.UniquePodName) []MountedVolume {
	a.mu.RLock()
	defer a.mu.RUnlock()
	var rows []MountedVolume
	for _, name := range slices.Sorted(maps.Keys(a.pods[podName])) {
		rows = append(rows, a.volumes[name].mount(podName))
	}
	return rows
}

// GetPossiblyMountedVolumesForVolume returns the set-ups of a volume, uncertain ones included, by pod.
func (a *ActualStateOfWorld) GetPossiblyMountedVolumesForVolume(volumeName v1.UniqueVolumeName) []MountedVolume {
	snapshot, _ := a.Snapshot(volumeName)
	return snapshot.Mounts
}

// PodHasMountedVolumes reports whether any volume is set up for the pod for certain.
func (a *ActualStateOfWorld) PodHasMountedVolumes(podName volume.UniquePodName) bool {
	return len(a.GetMountedVolumesForPod(podName)) > 0
}

// PodRemovedFromVolume reports whether the volume is not, and may not be, set up for the pod.
func (a *ActualStateOfWorld) PodRemovedFromVolume(podName volume.UniquePodName, volumeName v1.UniqueVolumeName) bool {
	return a.GetVolumeMountState(volumeName, podName) == operationexecutor.VolumeNotMounted
}

// GetPods returns the pods for which any volume is, or may be, set up, sorted.
func (a *ActualStateOfWorld) GetPods() []volume.UniquePodName {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return slices.Sorted(maps.Keys(a.pods))
}

func notMounted(m MountedVolume) bool { return m.State != operationexecutor.VolumeMounted }

func (v *knownVolume) mounts() []MountedVolume {
	rows := make([]MountedVolume, 0, len(v.pods))
	for _, podName := range slices.Sorted(maps.Keys(v.pods)) {
		rows = append(rows, v.mount(podName))
	}
	return rows
}

func (v *knownVolume) mount(podName volume.UniquePodName) MountedVolume {
	m := v.pods[podName]
	return MountedVolume{
		MountedVolume: operationexecutor.MountedVolume{
			PodName:              podName,
			PodUID:               m.opts.PodUID,
			Pod:                  m.opts.Pod,
			VolumeName:           v.name,
			InnerVolumeSpecName:  m.opts.VolumeSpec.Name(),
			OuterVolumeSpecNames: m.opts.OuterVolumeSpecNames,
			PluginName:           v.plugin.name,
			VolumeSpec:           m.opts.VolumeSpec,
			Mounter:              m.opts.Mounter,
			VolumeGidValue:       m.opts.VolumeGidValue,
			DeviceMountPath:      v.deviceMountPath,
			BlockVolumeMapper:    m.opts.BlockVolumeMapper,
			SELinuxMountContext:  m.opts.SELinuxMountContext,
			DevicePath:           v.devicePath,
		},
		State:           m.state,
		RemountRequired: m.remountRequired,
		Reconstructed:   m.reconstructed,
	}
}
