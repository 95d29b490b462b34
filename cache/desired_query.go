package cache

import (
	"iter"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/rows"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// row returns a copy of what is to be mounted for the pod, with what is known of the volume.
func (w *want) row() operationexecutor.VolumeToMount {
	row, v := w.VolumeToMount, w.volume
	row.VolumeName, row.PluginName = v.name, v.plugin.name
	row.PluginIsAttachable, row.PluginIsDeviceMountable = v.plugin.attachable, v.plugin.deviceMountable
	row.ReportedInUse = v.reportedInUse
	if row.VolumeSpec.PersistentVolume != nil && !row.VolumeSpec.ReadOnly {
		row.DesiredPersistentVolumeSize = v.size
	}
	return row
}

// AllVolumesToMount yields a copy of each row that [DesiredStateOfWorld.GetVolumesToMount] returns when the loop begins. No
// lock is held meanwhile.
func (d *DesiredStateOfWorld) AllVolumesToMount() iter.Seq[*operationexecutor.VolumeToMount] {
	return rows.Pointers(d.GetVolumesToMount)
}

// VolumesOfPod yields a copy of what is to be mounted for one pod when the loop begins, by the name of the volume. No lock
// is held meanwhile.
func (d *DesiredStateOfWorld) VolumesOfPod(podName volume.UniquePodName) iter.Seq[*operationexecutor.VolumeToMount] {
	return rows.Pointers(func() []operationexecutor.VolumeToMount { return d.volumesOfPod(podName) })
}

func (d *DesiredStateOfWorld) volumesOfPod(podName volume.UniquePodName) []operationexecutor.VolumeToMount {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return rows.AppendCopies(nil, d.pods[podName], (*want).row)
}

// VolumeExists reports whether any pod wants the volume.
func (d *DesiredStateOfWorld) VolumeExists(volumeName v1.UniqueVolumeName) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.volumes[volumeName] != nil
}

// PodExistsInVolume reports whether the pod wants the volume.
func (d *DesiredStateOfWorld) PodExistsInVolume(podName volume.UniquePodName, volumeName v1.UniqueVolumeName) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.find(volumeName, podName) != nil
}

// VolumeToMount returns what is to be mounted for the pod, and false when the pod does not want the volume. DevicePath is
// empty: the actual state knows it.
func (d *DesiredStateOfWorld) VolumeToMount(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) (operationexecutor.VolumeToMount, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if w := d.find(volumeName, podName); w != nil {
		return w.row(), true
	}
	return operationexecutor.VolumeToMount{}, false
}

// Incarnation returns the [operationexecutor.VolumeToMount]'s Incarnation of a pod that wants a volume; zero when it does not
// want it.
func (d *DesiredStateOfWorld) Incarnation(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) uint64 {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if w := d.find(volumeName, podName); w != nil {
		return w.Incarnation
	}
	return 0
}

// VolumesToMount returns what is to be mounted of one volume, for each pod that wants it, those that asked first coming
// first.
func (d *DesiredStateOfWorld) VolumesToMount(volumeName v1.UniqueVolumeName) []operationexecutor.VolumeToMount {
	return d.AppendVolumesToMount(nil, volumeName)
}

// AppendVolumesToMount adds to copies what [DesiredStateOfWorld.VolumesToMount] returns, for who asks again and again.
func (d *DesiredStateOfWorld) AppendVolumesToMount(copies []operationexecutor.VolumeToMount, volumeName v1.UniqueVolumeName) []operationexecutor.VolumeToMount {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if v := d.volumes[volumeName]; v != nil {
		copies = rows.AppendCopies(copies, v.inOrder(), (*want).row)
	}
	return copies
}

// GetVolumesToMount returns what is to be mounted of all volumes, by the name of the volume and then as
// [DesiredStateOfWorld.VolumesToMount].
func (d *DesiredStateOfWorld) GetVolumesToMount() []operationexecutor.VolumeToMount {
	d.mu.RLock()
	defer d.mu.RUnlock()
	copies := make([]operationexecutor.VolumeToMount, 0, len(d.volumes))
	for _, name := range slices.Sorted(maps.Keys(d.volumes)) {
		copies = rows.AppendCopies(copies, d.volumes[name].inOrder(), (*want).row)
	}
	return copies
}

// inOrder returns the pods that want the volume, those that asked first coming first.
func (v *wantedVolume) inOrder() []*want {
	if len(v.pods) == 1 {
		return v.pods
	}
	return slices.SortedStableFunc(slices.Values(v.pods), func(a, b *want) int { return a.MountRequestTime.Compare(b.MountRequestTime) })
}

// GetVolumeNames returns the names of the volumes that pods want, sorted.
func (d *DesiredStateOfWorld) GetVolumeNames() []v1.UniqueVolumeName {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.Sorted(maps.Keys(d.volumes))
}

// GetVolumeNamesOfPlugin returns the names of the volumes that pods want of one plugin, sorted.
func (d *DesiredStateOfWorld) GetVolumeNamesOfPlugin(pluginName string) []v1.UniqueVolumeName {
	return d.namesOf(func(v *wantedVolume) bool { return v.plugin.name == pluginName })
}

// attachableVolumeNames returns the names of the volumes that pods want and that must be attached, sorted.
func (d *DesiredStateOfWorld) attachableVolumeNames() []v1.UniqueVolumeName {
	return d.namesOf(func(v *wantedVolume) bool { return v.plugin.attachable })
}

// GetVolumeNamesOfPersistentVolume returns the names of the volumes that pods want of one PersistentVolume, sorted: more than
// one where each pod has a volume of its own.
func (d *DesiredStateOfWorld) GetVolumeNamesOfPersistentVolume(name string) []v1.UniqueVolumeName {
	return d.namesOf(func(v *wantedVolume) bool {
		pv := v.pods[0].VolumeSpec.PersistentVolume
		return pv != nil && pv.Name == name
	})
}

// namesOf returns the names of some volumes, sorted. It looks at all.
func (d *DesiredStateOfWorld) namesOf(which func(*wantedVolume) bool) []v1.UniqueVolumeName {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return rows.KeysOf(d.volumes, which)
}

// GetVolumeNamesForPod returns the unique names of the pod's volumes by their outer names; a copy.
func (d *DesiredStateOfWorld) GetVolumeNamesForPod(podName volume.UniquePodName) map[string]v1.UniqueVolumeName {
	d.mu.RLock()
	defer d.mu.RUnlock()
	names := make(map[string]v1.UniqueVolumeName, len(d.pods[podName]))
	for _, w := range d.pods[podName] {
		for _, outer := range w.OuterVolumeSpecNames {
			names[outer] = w.volume.name
		}
	}
	return names
}

// GetPods returns the pods that want at least one volume, sorted.
func (d *DesiredStateOfWorld) GetPods() []volume.UniquePodName {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.Sorted(maps.Keys(d.pods))
}
