package volumemanager

import (
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/mounter"
)

// VolumeMap holds the volumes of a pod by their outer names.
type VolumeMap map[string]VolumeInfo

// VolumeInfo is a volume that is set up for a pod.
type VolumeInfo struct {
	// Mounter set the volume up; nil for a block volume. It is the plugin's own: what it panics with is the caller's.
	Mounter volume.Mounter
	// BlockVolumeMapper mapped the block volume, and is the plugin's own; nil for a filesystem.
	BlockVolumeMapper volume.BlockVolumeMapper
	// Path is the absolute path, as the host sees it, at which the volume is set up: what a container's mount is made of.
	// It is empty for a block volume.
	Path string
	// DevicePath is the absolute path, as the host sees it, of a block volume's device: a link that is the pod's own and
	// leads to the device as long as the pod has the volume. It is empty for a filesystem.
	DevicePath string
	// ReadOnly is true when every container must get the volume read-only: the pod's reference to the claim says so, or
	// the plugin set it up so. A container may ask for read-only by itself.
	ReadOnly bool
	// InnerVolumeSpecName is the name of the PersistentVolume for a claim, the outer name otherwise.
	InnerVolumeSpecName string
	// Volume is the unique name.
	Volume v1.UniqueVolumeName
	// Plugin is the name of the plugin.
	Plugin string
}

// GetMountedVolumesForPod returns the volumes that are set up for a pod, by outer name. Those that are not, that only may
// be, or that are being taken away, are left out; a pod that is not known has none.
func (m *Manager) GetMountedVolumesForPod(podName volume.UniquePodName) VolumeMap {
	volumes := make(VolumeMap)
	entry := m.populator.Pod(types.UID(podName))
	leaving := func(mounted cache.MountedVolume) bool {
		return m.reconciler.IsTearingDown(mounted.VolumeName, podName) || !m.view.isCurrent(&mounted)
	}
	for _, mounted := range slices.DeleteFunc(m.actual.GetMountedVolumesForPod(podName), leaving) {
		info := infoOf(mounted)
		readOnly := info.ReadOnly
		for _, outer := range entry.OuterNames(&mounted) {
			info.ReadOnly = readOnly || entry.Volume(outer).ReadOnly
			volumes[outer] = info
		}
	}
	return volumes
}

// isCurrent reports whether a set-up is not that of an earlier pod with the UID of one that wants the volume now.
func (n *nodeView) isCurrent(mounted *cache.MountedVolume) bool {
	wanted := n.desired.Incarnation(mounted.VolumeName, mounted.PodName)
	return wanted == 0 || mounted.IsFor(wanted)
}

func infoOf(mounted cache.MountedVolume) VolumeInfo {
	info := VolumeInfo{
		ReadOnly: mounted.VolumeSpec.ReadOnly, InnerVolumeSpecName: mounted.InnerVolumeSpecName,
		Volume: mounted.VolumeName, Plugin: mounted.PluginName,
	}
	if volume.IsBlock(mounted.VolumeSpec) {
		info.BlockVolumeMapper, info.DevicePath = mounted.BlockVolumeMapper, pathOf(mounted)
		return info
	}
	info.Mounter, info.Path = mounter.PluginsOwn(mounted.Mounter), pathOf(mounted)
	if mounted.Mounter != nil && mounted.Mounter.GetAttributes().ReadOnly {
		info.ReadOnly = true
	}
	return info
}

// GetExtraSupplementalGroupsForPod returns the groups that the PersistentVolumes which are set up for pod ask for and
// that the pod does not ask for itself; sorted. A value that is no group is left out, as in Kubernetes. A pod that is not known
// has none.
func (m *Manager) GetExtraSupplementalGroupsForPod(pod *v1.Pod) []int64 {
	if pod == nil {
		return nil
	}
	groups := sets.New[int64]()
	for _, mounted := range m.actual.GetMountedVolumesForPod(volume.GetUniquePodName(pod)) {
		if !m.view.isCurrent(&mounted) {
			continue
		}
		if gid, err := strconv.ParseInt(mounted.VolumeGidValue, 10, 64); err == nil {
			groups.Insert(gid)
		}
	}
	if sc := pod.Spec.SecurityContext; sc != nil {
		groups.Delete(sc.SupplementalGroups...)
	}
	return sets.List(groups)
}

// GetVolumesInUse returns the attachable volumes that pods want, or that are, or may be, attached to this node; sorted.
// A controller must not detach them.
func (m *Manager) GetVolumesInUse() []v1.UniqueVolumeName {
	return cache.VolumesInUse(m.desired, m.actual.ActualStateOfWorld)
}

// PodsOfVolume returns the pods that want the volume, or for which it is, or may be, set up; sorted. It does no I/O.
func (m *Manager) PodsOfVolume(volumeName v1.UniqueVolumeName) []volume.UniquePodName {
	return m.view.podsOf(volumeName)
}

// VolumeIsAttached reports whether the volume is attached to this node, or needs no attaching and is known. A volume that
// only may be attached is not.
func (m *Manager) VolumeIsAttached(volumeName v1.UniqueVolumeName) bool {
	row, ok := m.actual.GetAttachedVolume(volumeName)
	return ok && row.AttachState == cache.Attached
}

// MarkVolumesAsReportedInUse says that the node's status lists these volumes as in use, and no others.
func (m *Manager) MarkVolumesAsReportedInUse(volumesReportedAsInUse []v1.UniqueVolumeName) {
	m.desired.MarkVolumesReportedInUse(volumesReportedAsInUse)
}
