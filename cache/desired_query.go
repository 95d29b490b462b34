package cache

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// AllVolumesToMount yields what is to be mounted of all volumes, in no particular order. It copies nothing, allocates
// nothing and holds no lock, so that the caller may change the state meanwhile: each row that is there all the time is
// yielded exactly once, as it was at one moment; one that comes or goes meanwhile may be yielded or not. A row never
// changes. It is shared: whoever changes it changes it for all.
func (d *DesiredStateOfWorld) AllVolumesToMount() iter.Seq[*operationexecutor.VolumeToMount] {
	return func(yield func(*operationexecutor.VolumeToMount) bool) {
		for w := range d.wants.all {
			if !yield(&w.VolumeToMount) {
				return
			}
		}
	}
}

// VolumesOfPod yields what is to be mounted for one pod, in no particular order. The set of rows is that of the moment in
// which the loop begins; otherwise it is as [DesiredStateOfWorld.AllVolumesToMount].
func (d *DesiredStateOfWorld) VolumesOfPod(podName volume.UniquePodName) iter.Seq[*operationexecutor.VolumeToMount] {
	return func(yield func(*operationexecutor.VolumeToMount) bool) {
		var buffer [few]*want
		for _, w := range d.rowsOfPod(podName, buffer[:0]) {
			if !yield(&w.VolumeToMount) {
				return
			}
		}
	}
}

func (d *DesiredStateOfWorld) rowsOfPod(podName volume.UniquePodName, rows []*want) []*want {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.wants.ofPod(podName, rows)
}

// VolumeExists reports whether any pod wants the volume.
func (d *DesiredStateOfWorld) VolumeExists(volumeName v1.UniqueVolumeName) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.volumes[volumeName] != nil
}

// VolumeExistsWithContext reports whether any pod wants the volume mounted with that SELinux context; empty means none.
// What is mounted with another one is to be unmounted.
func (d *DesiredStateOfWorld) VolumeExistsWithContext(volumeName v1.UniqueVolumeName, seLinuxMountContext string) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	v := d.volumes[volumeName]
	return v != nil && v.pods.first.member.row.Load().SELinuxLabel == seLinuxMountContext // All pods agree.
}

// PodExistsInVolume reports whether the pod wants the volume.
func (d *DesiredStateOfWorld) PodExistsInVolume(podName volume.UniquePodName, volumeName v1.UniqueVolumeName) bool {
	return d.row(volumeName, podName) != nil
}

// PodExistsInVolumeWithContext reports whether the pod wants the volume mounted with that SELinux context.
func (d *DesiredStateOfWorld) PodExistsInVolumeWithContext(podName volume.UniquePodName, volumeName v1.UniqueVolumeName, seLinuxMountContext string) bool {
	w := d.row(volumeName, podName)
	return w != nil && w.SELinuxLabel == seLinuxMountContext
}

func (d *DesiredStateOfWorld) row(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) *want {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if v := d.volumes[volumeName]; v != nil {
		return v.pods.get(podName)
	}
	return nil
}

// VolumeExistsWithSpecName reports whether the pod wants a volume with that inner name.
func (d *DesiredStateOfWorld) VolumeExistsWithSpecName(podName volume.UniquePodName, innerName string) bool {
	for w := range d.VolumesOfPod(podName) {
		if w.VolumeSpec.Name() == innerName {
			return true
		}
	}
	return false
}

// VolumeToMount returns what is to be mounted for the pod, and false when the pod does not want the volume. DevicePath is
// empty: the actual state knows it.
func (d *DesiredStateOfWorld) VolumeToMount(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) (operationexecutor.VolumeToMount, bool) {
	w := d.row(volumeName, podName)
	if w == nil {
		return operationexecutor.VolumeToMount{}, false
	}
	return w.VolumeToMount, true
}

// Incarnation returns the [operationexecutor.VolumeToMount]'s Incarnation of a pod that wants a volume; zero when it does not
// want it.
func (d *DesiredStateOfWorld) Incarnation(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) uint64 {
	if w := d.row(volumeName, podName); w != nil {
		return w.Incarnation
	}
	return 0
}

// VolumesToMount returns what is to be mounted of one volume, for each pod that wants it, those that asked first coming
// first.
func (d *DesiredStateOfWorld) VolumesToMount(volumeName v1.UniqueVolumeName) []operationexecutor.VolumeToMount {
	return d.AppendVolumesToMount(nil, volumeName)
}

// AppendVolumesToMount adds to rows what [DesiredStateOfWorld.VolumesToMount] returns, for who asks again and again.
func (d *DesiredStateOfWorld) AppendVolumesToMount(rows []operationexecutor.VolumeToMount, volumeName v1.UniqueVolumeName) []operationexecutor.VolumeToMount {
	d.mu.RLock()
	defer d.mu.RUnlock()
	v := d.volumes[volumeName]
	if v == nil {
		return rows
	}
	return v.appendRows(slices.Grow(rows, v.pods.count))
}

// GetVolumesToMount returns what is to be mounted of all volumes, by the name of the volume and then as
// [DesiredStateOfWorld.VolumesToMount]. It copies everything: to look at all, use [DesiredStateOfWorld.AllVolumesToMount].
func (d *DesiredStateOfWorld) GetVolumesToMount() []operationexecutor.VolumeToMount {
	d.mu.RLock()
	defer d.mu.RUnlock()
	rows := make([]operationexecutor.VolumeToMount, 0, d.wants.inUse)
	for _, name := range slices.Sorted(maps.Keys(d.volumes)) {
		rows = d.volumes[name].appendRows(rows)
	}
	return rows
}

// appendRows adds the rows of the volume to rows, those that asked first coming first.
func (v *wantedVolume) appendRows(rows []operationexecutor.VolumeToMount) []operationexecutor.VolumeToMount {
	before := len(rows)
	for x := range v.pods.all {
		rows = append(rows, x.row.Load().VolumeToMount)
	}
	slices.SortFunc(rows[before:], func(a, b operationexecutor.VolumeToMount) int {
		return cmp.Or(a.MountRequestTime.Compare(b.MountRequestTime), cmp.Compare(a.PodName, b.PodName))
	})
	return rows
}

// GetVolumeNames returns the names of the volumes that pods want, sorted.
func (d *DesiredStateOfWorld) GetVolumeNames() []v1.UniqueVolumeName {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.Sorted(maps.Keys(d.volumes))
}

// GetVolumeNamesOfPlugin returns the names of the volumes that pods want of one plugin, sorted.
func (d *DesiredStateOfWorld) GetVolumeNamesOfPlugin(pluginName string) []v1.UniqueVolumeName {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return sortedNames(d.byPlugin[pluginName])
}

// GetAttachableVolumeNames returns the names of the volumes that pods want and that must be attached, sorted.
func (d *DesiredStateOfWorld) GetAttachableVolumeNames() []v1.UniqueVolumeName {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return sortedNames(d.attachables.first)
}

func (v *wantedVolume) uniqueName() v1.UniqueVolumeName { return v.name }

// sortedNames returns the names of the volumes of a list.
func sortedNames[V interface{ uniqueName() v1.UniqueVolumeName }](volumes *seat[V]) []v1.UniqueVolumeName {
	var names []v1.UniqueVolumeName
	for v := range volumes.all {
		names = append(names, v.uniqueName())
	}
	slices.Sort(names)
	return names
}

// GetVolumeNamesForPod returns the unique names of the pod's volumes by their outer names; a copy.
func (d *DesiredStateOfWorld) GetVolumeNamesForPod(podName volume.UniquePodName) map[string]v1.UniqueVolumeName {
	var buffer [few]*want
	rows := d.rowsOfPod(podName, buffer[:0])
	names := make(map[string]v1.UniqueVolumeName, len(rows))
	for _, w := range rows {
		for _, outer := range w.OuterVolumeSpecNames {
			names[outer] = w.VolumeName
		}
	}
	return names
}

// GetPods returns the pods that want at least one volume, sorted.
func (d *DesiredStateOfWorld) GetPods() []volume.UniquePodName {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.Sorted(maps.Keys(d.wants.byPod))
}
