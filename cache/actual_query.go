package cache

import (
	"iter"
	"maps"
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/internal/rows"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// AttachedVolume is what is known of a volume on this node, without its pods.
type AttachedVolume struct {
	operationexecutor.AttachedVolume
	// PluginRequiresRemount says that the volume is set up again at each update of a pod.
	PluginRequiresRemount bool
	// AttachState is what is known of the attachment. A volume that needs no attaching is attached.
	AttachState AttachState
	// DeviceMountState is what is known of the staging.
	DeviceMountState operationexecutor.DeviceMountState
	// DeviceReconstructed says that the staging was found after a restart and no call for it has succeeded since.
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
	// Reconstructed says that the set-up was found after a restart and no call for it has succeeded since.
	Reconstructed bool
}

// incarnationRemoved marks a set-up of an unknown incarnation of its pod, after that pod was removed.
const incarnationRemoved = math.MaxUint64

// IsFor reports whether the set-up was made for that incarnation of its pod. A set-up of an unknown incarnation, found
// after a restart, counts for every incarnation until the pod is removed: see [ActualStateOfWorld.MarkPodRemoved].
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
func (a *ActualStateOfWorld) Snapshot(volumeName v1.UniqueVolumeName) (s VolumeSnapshot, known bool) {
	known = a.SnapshotInto(&s, volumeName)
	return s, known
}

// SnapshotInto is Snapshot for callers that repeat it: it overwrites s and reuses the memory of s.Mounts.
func (a *ActualStateOfWorld) SnapshotInto(s *VolumeSnapshot, volumeName v1.UniqueVolumeName) (known bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	v := a.readVolume(s, volumeName)
	if v != nil {
		s.Mounts = rows.AppendCopies(s.Mounts, v.mounts, (*podMount).row)
	}
	return v != nil
}

// SnapshotOfPodInto is SnapshotInto for one pod. Mounts holds the set-up of the pod, if there is one, and that of one other
// pod, which shows how the volume is mounted here. The cost does not depend on the number of other pods.
func (a *ActualStateOfWorld) SnapshotOfPodInto(s *VolumeSnapshot, volumeName v1.UniqueVolumeName, podName volume.UniquePodName) (known bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	v := a.readVolume(s, volumeName)
	if v == nil {
		return false
	}
	if own := v.mountOf(podName); own != nil {
		s.Mounts = append(s.Mounts, own.row())
	}
	if other := slices.IndexFunc(v.mounts, func(m *podMount) bool { return m.PodName != podName }); other >= 0 {
		s.Mounts = append(s.Mounts, v.mounts[other].row())
	}
	return true
}

// readVolume fills s with what is known of a volume, without its set-ups. It returns the volume, or nil if it is unknown.
func (a *ActualStateOfWorld) readVolume(s *VolumeSnapshot, volumeName v1.UniqueVolumeName) *knownVolume {
	*s = VolumeSnapshot{Mounts: s.Mounts[:0]}
	v := a.volumes[volumeName]
	if v != nil {
		s.AttachedVolume = a.row(v)
	}
	return v
}

// AllMountedVolumes yields a copy of each row that [ActualStateOfWorld.GetAllMountedVolumes] returns when the loop begins. No
// lock is held meanwhile.
func (a *ActualStateOfWorld) AllMountedVolumes() iter.Seq[*MountedVolume] {
	return rows.Pointers(a.GetAllMountedVolumes)
}

// VolumesOfPod yields a copy of each row that [ActualStateOfWorld.GetPossiblyMountedVolumesForPod] returns when the loop
// begins. No lock is held meanwhile.
func (a *ActualStateOfWorld) VolumesOfPod(podName volume.UniquePodName) iter.Seq[*MountedVolume] {
	return rows.Pointers(func() []MountedVolume { return a.GetPossiblyMountedVolumesForPod(podName) })
}

// VolumeExists reports whether the volume is, or may be, attached.
func (a *ActualStateOfWorld) VolumeExists(volumeName v1.UniqueVolumeName) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.volumes[volumeName] != nil
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
	return a.rows(func(*knownVolume) bool { return true })
}

// GetUnmountedVolumes returns the volumes that are not, and may not be, set up for any pod, by name.
func (a *ActualStateOfWorld) GetUnmountedVolumes() []AttachedVolume {
	return a.rows(func(v *knownVolume) bool { return len(v.mounts) == 0 })
}

// GetVolumesOfPlugin returns the volumes of one plugin that are known, by name.
func (a *ActualStateOfWorld) GetVolumesOfPlugin(pluginName string) []AttachedVolume {
	return a.rows(func(v *knownVolume) bool { return v.plugin.name == pluginName })
}

// rows returns the rows of the volumes that which selects, by name. It visits all volumes.
func (a *ActualStateOfWorld) rows(which func(*knownVolume) bool) []AttachedVolume {
	a.mu.RLock()
	defer a.mu.RUnlock()
	names := rows.KeysOf(a.volumes, which)
	rows := make([]AttachedVolume, 0, len(names))
	for _, name := range names {
		rows = append(rows, a.row(a.volumes[name]))
	}
	return rows
}

// GetVolumeNames returns the names of all volumes that are known, sorted.
func (a *ActualStateOfWorld) GetVolumeNames() []v1.UniqueVolumeName {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return slices.Sorted(maps.Keys(a.volumes))
}

// attachableVolumeNames returns the names of the volumes that are, or may be, attached and must be detached, sorted.
func (a *ActualStateOfWorld) attachableVolumeNames() []v1.UniqueVolumeName {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return rows.KeysOf(a.volumes, func(v *knownVolume) bool { return v.plugin.attachable })
}

func (a *ActualStateOfWorld) row(v *knownVolume) AttachedVolume {
	return AttachedVolume{
		AttachedVolume: operationexecutor.AttachedVolume{
			VolumeName:              v.name,
			VolumeSpec:              v.spec,
			NodeName:                a.nodeName,
			PluginName:              v.plugin.name,
			PluginIsAttachable:      v.plugin.attachable,
			PluginIsDeviceMountable: v.plugin.deviceMountable,
			DevicePath:              v.devicePath,
			DeviceMountPath:         v.deviceMountPath,
			SELinuxMountContext:     v.seLinuxMountContext,
		},
		PluginRequiresRemount: v.plugin.remountable,
		AttachState:           v.attach,
		DeviceMountState:      v.device,
		DeviceReconstructed:   v.deviceReconstructed,
		ClaimSize:             v.expansion.size,
		PodCount:              len(v.mounts),
	}
}

// mount returns a set-up, or nil. The caller holds the lock.
func (a *ActualStateOfWorld) mount(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) *podMount {
	return rows.Find(a.pods[podName], volumeName, (*podMount).compareVolume)
}

// row returns a copy of what is known of a set-up, with what is known of its volume.
func (m *podMount) row() MountedVolume {
	row, v := m.MountedVolume, m.volume
	row.VolumeName, row.PluginName, row.InnerVolumeSpecName = v.name, v.plugin.name, row.VolumeSpec.Name()
	row.DevicePath, row.DeviceMountPath = v.devicePath, v.deviceMountPath
	return row
}

// GetMountedVolume returns what is known of a volume's set-up for a pod, uncertain ones included, and false when there is
// none.
func (a *ActualStateOfWorld) GetMountedVolume(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) (MountedVolume, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if m := a.mount(volumeName, podName); m != nil {
		return m.row(), true
	}
	return MountedVolume{}, false
}

// GetMountedVolumes returns every set-up that is there for certain, by volume and pod.
func (a *ActualStateOfWorld) GetMountedVolumes() []MountedVolume {
	return slices.DeleteFunc(a.GetAllMountedVolumes(), notMounted)
}

// GetAllMountedVolumes returns every set-up, uncertain ones included, by volume and pod.
func (a *ActualStateOfWorld) GetAllMountedVolumes() []MountedVolume {
	a.mu.RLock()
	defer a.mu.RUnlock()
	copies := make([]MountedVolume, 0, len(a.volumes))
	for _, name := range slices.Sorted(maps.Keys(a.volumes)) {
		copies = rows.AppendCopies(copies, a.volumes[name].mounts, (*podMount).row)
	}
	return copies
}

// GetMountedVolumesForPod returns the volumes that are set up for a pod for certain, by name.
func (a *ActualStateOfWorld) GetMountedVolumesForPod(podName volume.UniquePodName) []MountedVolume {
	return slices.DeleteFunc(a.GetPossiblyMountedVolumesForPod(podName), notMounted)
}

// GetPossiblyMountedVolumesForPod returns the volumes that are, or may be, set up for a pod, by name.
func (a *ActualStateOfWorld) GetPossiblyMountedVolumesForPod(podName volume.UniquePodName) []MountedVolume {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return rows.AppendCopies(nil, a.pods[podName], (*podMount).row)
}

// GetVolumeNamesForPod returns the names of the volumes that are, or may be, set up for a pod, sorted.
func (a *ActualStateOfWorld) GetVolumeNamesForPod(podName volume.UniquePodName) []v1.UniqueVolumeName {
	a.mu.RLock()
	defer a.mu.RUnlock()
	var names []v1.UniqueVolumeName
	for _, m := range a.pods[podName] {
		names = append(names, m.volume.name)
	}
	return names
}

// VolumesOfPodNamed returns the volumes of one plugin with one inner name that are, or may be, set up for a pod, sorted:
// plugins set all of them up at the same path.
func (a *ActualStateOfWorld) VolumesOfPodNamed(podName volume.UniquePodName, pluginName, innerName string) []v1.UniqueVolumeName {
	a.mu.RLock()
	defer a.mu.RUnlock()
	var names []v1.UniqueVolumeName
	for _, m := range a.pods[podName] {
		if m.volume.plugin.name == pluginName && m.VolumeSpec.Name() == innerName {
			names = append(names, m.volume.name)
		}
	}
	return names
}

// GetPossiblyMountedVolumesForVolume returns the set-ups of a volume, uncertain ones included, by pod.
func (a *ActualStateOfWorld) GetPossiblyMountedVolumesForVolume(volumeName v1.UniqueVolumeName) []MountedVolume {
	snapshot, _ := a.Snapshot(volumeName)
	return snapshot.Mounts
}

// PodRemovedFromVolume reports whether the volume is not, and may not be, set up for the pod.
func (a *ActualStateOfWorld) PodRemovedFromVolume(podName volume.UniquePodName, volumeName v1.UniqueVolumeName) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.mount(volumeName, podName) == nil
}

// GetPods returns the pods for which any volume is, or may be, set up, sorted.
func (a *ActualStateOfWorld) GetPods() []volume.UniquePodName {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return slices.Sorted(maps.Keys(a.pods))
}

func notMounted(m MountedVolume) bool { return m.State != operationexecutor.VolumeMounted }
