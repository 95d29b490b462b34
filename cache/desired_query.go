package cache

import (
	"cmp"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// VolumeExists reports whether any pod wants the volume.
func (d *DesiredStateOfWorld) VolumeExists(volumeName v1.UniqueVolumeName) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.volumes[volumeName] != nil
}

// PodExistsInVolume reports whether the pod wants the volume.
func (d *DesiredStateOfWorld) PodExistsInVolume(podName volume.UniquePodName, volumeName v1.UniqueVolumeName) bool {
	_, ok := d.VolumeToMount(volumeName, podName)
	return ok
}

// VolumeExistsWithSpecName reports whether the pod wants a volume with that inner name.
func (d *DesiredStateOfWorld) VolumeExistsWithSpecName(podName volume.UniquePodName, innerName string) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, name := range d.namesOf(podName) {
		if d.volumes[name].pods[podName].options.VolumeSpec.Name() == innerName {
			return true
		}
	}
	return false
}

// VolumeToMount returns what is to be mounted for the pod, and false when the pod does not want the volume. DevicePath is
// empty: the actual state knows it.
func (d *DesiredStateOfWorld) VolumeToMount(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) (operationexecutor.VolumeToMount, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	v := d.volumes[volumeName]
	if v == nil || v.pods[podName] == nil {
		return operationexecutor.VolumeToMount{}, false
	}
	return v.row(podName), true
}

// VolumesToMount returns what is to be mounted of one volume, for each pod that wants it, those that asked first coming
// first.
func (d *DesiredStateOfWorld) VolumesToMount(volumeName v1.UniqueVolumeName) []operationexecutor.VolumeToMount {
	d.mu.RLock()
	defer d.mu.RUnlock()
	v := d.volumes[volumeName]
	if v == nil {
		return nil
	}
	return v.rows()
}

// GetVolumesToMount returns what is to be mounted of all volumes, by the name of the volume and then as [DesiredStateOfWorld.VolumesToMount].
func (d *DesiredStateOfWorld) GetVolumesToMount() []operationexecutor.VolumeToMount {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var rows []operationexecutor.VolumeToMount
	for _, name := range slices.Sorted(maps.Keys(d.volumes)) {
		rows = append(rows, d.volumes[name].rows()...)
	}
	return rows
}

// GetVolumeNames returns the names of the volumes that pods want, sorted.
func (d *DesiredStateOfWorld) GetVolumeNames() []v1.UniqueVolumeName {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.Sorted(maps.Keys(d.volumes))
}

// GetVolumeNamesForPod returns the unique names of the pod's volumes by their outer names; a copy.
func (d *DesiredStateOfWorld) GetVolumeNamesForPod(podName volume.UniquePodName) map[string]v1.UniqueVolumeName {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if pod := d.pods[podName]; pod != nil {
		return maps.Clone(pod.outer)
	}
	return map[string]v1.UniqueVolumeName{}
}

// GetPods returns the pods that want at least one volume, sorted.
func (d *DesiredStateOfWorld) GetPods() []volume.UniquePodName {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.sortedPods(func(pod *wantingPod) bool { return len(pod.outer) > 0 })
}

func (d *DesiredStateOfWorld) sortedPods(keep func(*wantingPod) bool) []volume.UniquePodName {
	var names []volume.UniquePodName
	for name, pod := range d.pods {
		if keep(pod) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (v *wantedVolume) rows() []operationexecutor.VolumeToMount {
	rows := make([]operationexecutor.VolumeToMount, 0, len(v.pods))
	for podName := range v.pods {
		rows = append(rows, v.row(podName))
	}
	slices.SortFunc(rows, func(a, b operationexecutor.VolumeToMount) int {
		return cmp.Or(a.MountRequestTime.Compare(b.MountRequestTime), cmp.Compare(a.PodName, b.PodName))
	})
	return rows
}

func (v *wantedVolume) row(podName volume.UniquePodName) operationexecutor.VolumeToMount {
	w := v.pods[podName]
	return operationexecutor.VolumeToMount{
		VolumeName:              v.name,
		PodName:                 podName,
		VolumeSpec:              w.options.VolumeSpec,
		OuterVolumeSpecNames:    w.outerNames,
		Pod:                     w.options.Pod,
		PluginName:              v.plugin.name,
		PluginIsAttachable:      v.plugin.attachable,
		PluginIsDeviceMountable: v.plugin.deviceMountable,
		VolumeGidValue:          w.options.VolumeGidValue,
		ReportedInUse:           v.reportedInUse,
		DesiredSizeLimit:        w.options.DesiredSizeLimit,
		SELinuxLabel:            w.options.SELinuxLabel,
		MountRequestTime:        w.requested,
	}
}
