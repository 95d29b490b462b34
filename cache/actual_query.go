package cache

import (
	"cmp"
	"iter"
	"maps"
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// AttachedVolume is what is known of a volume on this node, beside its pods.
type AttachedVolume struct {
	operationexecutor.AttachedVolume
	// PluginIsDeviceMountable says that the volume is one that is staged.
	PluginIsDeviceMountable bool
	// PluginRequiresRemount says that the volume is to be set up again at each update of a pod.
	PluginRequiresRemount bool
	// AttachState is what is known of the attachment. A volume that needs no attaching is attached.
	AttachState AttachState
	// DeviceMountState is what is known of the staging.
	DeviceMountState operationexecutor.DeviceMountState
	// DeviceReconstructed says that the staging was found after a restart and that nothing has succeeded on it since.
	DeviceReconstructed bool
	// ClaimSize is the size in bytes that the volume has on this node; zero when it is not known.
	ClaimSize resource.Quantity
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

// incarnationRemoved is that of a set-up of which it is not known for which incarnation of its pod it was made, and whose
// pod was removed since.
const incarnationRemoved = math.MaxUint64

// IsFor reports whether what is, or may be, set up was made for that incarnation of its pod. One of which that is not known,
// because it was found after a restart, is for any until the pod is removed: see [ActualStateOfWorld.MarkPodRemoved].
func (m *MountedVolume) IsFor(incarnation uint64) bool {
	return m.Incarnation == 0 || m.Incarnation == incarnation
}

// VolumeSnapshot is all that is known of one volume at one moment.
type VolumeSnapshot struct {
	AttachedVolume
	// Mounts are its set-ups, by the pod's name.
	Mounts []MountedVolume
}

// Snapshot returns all that is known of a volume, and false when nothing is.
func (a *ActualStateOfWorld) Snapshot(volumeName v1.UniqueVolumeName) (VolumeSnapshot, bool) {
	var s VolumeSnapshot
	known := a.SnapshotInto(&s, volumeName)
	return s, known
}

// SnapshotInto is Snapshot for who asks again and again: it fills in s, whose Mounts are used again.
func (a *ActualStateOfWorld) SnapshotInto(s *VolumeSnapshot, volumeName v1.UniqueVolumeName) (known bool) {
	mounts := s.Mounts[:0]
	*s = VolumeSnapshot{Mounts: mounts}
	a.mu.RLock()
	defer a.mu.RUnlock()
	v := a.volumes[volumeName]
	if v == nil {
		return false
	}
	s.AttachedVolume, s.Mounts = a.row(v), v.copyMounts(slices.Grow(mounts, v.mounts.count))
	return true
}

// AllMountedVolumes yields every set-up, uncertain ones included, in no particular order. It copies nothing, allocates
// nothing and holds no lock, so that the caller may change the state meanwhile: each row that is there all the time is
// yielded exactly once, as it was at one moment; one that comes or goes meanwhile may be yielded or not. A row never
// changes. It is shared: whoever changes it changes it for all.
func (a *ActualStateOfWorld) AllMountedVolumes() iter.Seq[*MountedVolume] {
	return func(yield func(*MountedVolume) bool) {
		a.mounts.all(yield)
	}
}

// VolumesOfPod yields the volumes that are, or may be, set up for a pod, in no particular order. The set of rows is that
// of the moment in which the loop begins; otherwise it is as [ActualStateOfWorld.AllMountedVolumes].
func (a *ActualStateOfWorld) VolumesOfPod(podName volume.UniquePodName) iter.Seq[*MountedVolume] {
	return func(yield func(*MountedVolume) bool) {
		var buffer [few]*MountedVolume
		for _, m := range a.rowsOfPod(podName, buffer[:0]) {
			if !yield(m) {
				return
			}
		}
	}
}

func (a *ActualStateOfWorld) rowsOfPod(podName volume.UniquePodName, rows []*MountedVolume) []*MountedVolume {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.mounts.ofPod(podName, rows)
}

// VolumeExists reports whether the volume is, or may be, attached.
func (a *ActualStateOfWorld) VolumeExists(volumeName v1.UniqueVolumeName) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.volumes[volumeName] != nil
}

// VolumeExistsWithSpecName reports whether a volume with that inner name is, or may be, set up for the pod.
func (a *ActualStateOfWorld) VolumeExistsWithSpecName(podName volume.UniquePodName, innerName string) bool {
	for m := range a.VolumesOfPod(podName) {
		if m.InnerVolumeSpecName == innerName {
			return true
		}
	}
	return false
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
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.copyRows(len(a.volumes), maps.Values(a.volumes))
}

// GetGloballyMountedVolumes returns the volumes that are staged for certain, by name.
func (a *ActualStateOfWorld) GetGloballyMountedVolumes() []AttachedVolume {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.copyRows(a.staged.count, a.staged.all)
}

// GetUnmountedVolumes returns the volumes that are not, and may not be, set up for any pod, by name.
func (a *ActualStateOfWorld) GetUnmountedVolumes() []AttachedVolume {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.copyRows(a.idle.count, a.idle.all)
}

// GetVolumesOfPlugin returns the volumes of one plugin that are known, by name.
func (a *ActualStateOfWorld) GetVolumesOfPlugin(pluginName string) []AttachedVolume {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.copyRows(0, a.byPlugin[pluginName].all)
}

// GetVolumeNames returns the names of all volumes that are known, sorted.
func (a *ActualStateOfWorld) GetVolumeNames() []v1.UniqueVolumeName {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return slices.Sorted(maps.Keys(a.volumes))
}

// GetAttachableVolumeNames returns the names of the volumes that are, or may be, attached and must be detached, sorted.
func (a *ActualStateOfWorld) GetAttachableVolumeNames() []v1.UniqueVolumeName {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return sortedNames(a.attachables.first)
}

// GetUsesOfPath returns which devices, stagings and set-ups are, or may be, at an absolute path, by volume and pod. More
// than one says that two of them are in each other's way. The first call takes time for each volume that is known.
func (a *ActualStateOfWorld) GetUsesOfPath(path string) []PathUse {
	return a.usesOfPath(path)
}

func (v *knownVolume) uniqueName() v1.UniqueVolumeName { return v.name }

// copyRows returns the rows of volumes, about count, by name.
func (a *ActualStateOfWorld) copyRows(count int, volumes iter.Seq[*knownVolume]) []AttachedVolume {
	rows := make([]AttachedVolume, 0, count)
	for v := range volumes {
		rows = append(rows, a.row(v))
	}
	slices.SortFunc(rows, func(a, b AttachedVolume) int { return cmp.Compare(a.VolumeName, b.VolumeName) })
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
		PluginRequiresRemount:   v.plugin.remountable,
		AttachState:             v.attach,
		DeviceMountState:        v.device,
		DeviceReconstructed:     v.deviceReconstructed,
		ClaimSize:               v.expansion.size,
		PodCount:                v.mounts.count,
	}
}

// mount returns the row of a set-up, or nil.
func (a *ActualStateOfWorld) mount(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) *MountedVolume {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if v := a.volumes[volumeName]; v != nil {
		return v.mounts.get(podName)
	}
	return nil
}

// GetMountedVolume returns what is known of a volume's set-up for a pod, uncertain ones included, and false when there is
// none.
func (a *ActualStateOfWorld) GetMountedVolume(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) (MountedVolume, bool) {
	m := a.mount(volumeName, podName)
	if m == nil {
		return MountedVolume{}, false
	}
	return *m, true
}

// GetMountedVolumeForPod returns a volume that is set up for a pod for certain, and false when it is not.
func (a *ActualStateOfWorld) GetMountedVolumeForPod(podName volume.UniquePodName, volumeName v1.UniqueVolumeName) (MountedVolume, bool) {
	m := a.mount(volumeName, podName)
	if m.state() != operationexecutor.VolumeMounted {
		return MountedVolume{}, false
	}
	return *m, true
}

// GetMountedVolumes returns every set-up that is there for certain, by volume and pod. It copies everything: to look at
// all, use [ActualStateOfWorld.AllMountedVolumes].
func (a *ActualStateOfWorld) GetMountedVolumes() []MountedVolume {
	return slices.DeleteFunc(a.GetAllMountedVolumes(), notMounted)
}

// GetAllMountedVolumes returns every set-up, uncertain ones included, by volume and pod. It copies everything: to look at
// all, use [ActualStateOfWorld.AllMountedVolumes].
func (a *ActualStateOfWorld) GetAllMountedVolumes() []MountedVolume {
	a.mu.RLock()
	defer a.mu.RUnlock()
	rows := make([]MountedVolume, 0, a.mounts.inUse)
	for _, name := range slices.Sorted(maps.Keys(a.volumes)) {
		rows = a.volumes[name].copyMounts(rows)
	}
	return rows
}

// GetMountedVolumesForPod returns the volumes that are set up for a pod for certain, by name.
func (a *ActualStateOfWorld) GetMountedVolumesForPod(podName volume.UniquePodName) []MountedVolume {
	return slices.DeleteFunc(a.GetPossiblyMountedVolumesForPod(podName), notMounted)
}

// GetPossiblyMountedVolumesForPod returns the volumes that are, or may be, set up for a pod, by name.
func (a *ActualStateOfWorld) GetPossiblyMountedVolumesForPod(podName volume.UniquePodName) []MountedVolume {
	var buffer [few]*MountedVolume
	found := a.rowsOfPod(podName, buffer[:0])
	if len(found) == 0 {
		return nil
	}
	slices.SortFunc(found, func(a, b *MountedVolume) int { return cmp.Compare(a.VolumeName, b.VolumeName) })
	rows := make([]MountedVolume, 0, len(found))
	for _, m := range found {
		rows = append(rows, *m)
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
	for m := range a.VolumesOfPod(podName) {
		if m.State == operationexecutor.VolumeMounted {
			return true
		}
	}
	return false
}

// PodRemovedFromVolume reports whether the volume is not, and may not be, set up for the pod.
func (a *ActualStateOfWorld) PodRemovedFromVolume(podName volume.UniquePodName, volumeName v1.UniqueVolumeName) bool {
	return a.mount(volumeName, podName) == nil
}

// GetPods returns the pods for which any volume is, or may be, set up, sorted.
func (a *ActualStateOfWorld) GetPods() []volume.UniquePodName {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return slices.Sorted(maps.Keys(a.mounts.byPod))
}

func notMounted(m MountedVolume) bool { return m.State != operationexecutor.VolumeMounted }

// copyMounts adds the set-ups of the volume to rows, by pod.
func (v *knownVolume) copyMounts(rows []MountedVolume) []MountedVolume {
	before := len(rows)
	for x := range v.mounts.all {
		rows = append(rows, *x.row.Load())
	}
	slices.SortFunc(rows[before:], func(a, b MountedVolume) int { return cmp.Compare(a.PodName, b.PodName) })
	return rows
}
