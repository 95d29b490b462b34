package cache

import (
	"cmp"
	"iter"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// VolumeExists reports whether any pod on the node wants the volume.
func (d *ClusterDesiredStateOfWorld) VolumeExists(volumeName v1.UniqueVolumeName, nodeName types.NodeName) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.attachments.get(attachmentKey{nodeName, volumeName}) != nil
}

// PodExists reports whether the pod wants the volume on the node.
func (d *ClusterDesiredStateOfWorld) PodExists(podName volume.UniquePodName, volumeName v1.UniqueVolumeName, nodeName types.NodeName) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.pods.get(placeKey[attachmentKey, volume.UniquePodName]{attachmentKey{nodeName, volumeName}, podName}) != nil
}

// VolumeToAttach returns what the executor needs to attach a volume to a node, its pods by their UIDs, and false when no pod
// there wants it.
func (d *ClusterDesiredStateOfWorld) VolumeToAttach(volumeName v1.UniqueVolumeName, nodeName types.NodeName) (operationexecutor.VolumeToAttach, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	row := d.attachments.get(attachmentKey{nodeName, volumeName})
	if row == nil {
		return operationexecutor.VolumeToAttach{}, false
	}
	return row.toAttach(), true
}

// VolumesToAttach returns what the executor needs to attach a volume to every node on which pods want it, by node.
func (d *ClusterDesiredStateOfWorld) VolumesToAttach(volumeName v1.UniqueVolumeName) []operationexecutor.VolumeToAttach {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var volumes []operationexecutor.VolumeToAttach
	for x := range d.attachments.byPartner[volumeName].all {
		volumes = append(volumes, x.row.toAttach())
	}
	slices.SortFunc(volumes, func(a, b operationexecutor.VolumeToAttach) int { return cmp.Compare(a.NodeName, b.NodeName) })
	return volumes
}

func (w *wantedAttachment) toAttach() operationexecutor.VolumeToAttach {
	pods := collect(*w.pods, make([]*v1.Pod, 0, w.pods.count))
	slices.SortFunc(pods, func(a, b *v1.Pod) int { return cmp.Compare(a.UID, b.UID) })
	return operationexecutor.VolumeToAttach{
		VolumeName:               w.VolumeName,
		VolumeSpec:               w.VolumeSpec,
		NodeName:                 w.NodeName,
		ScheduledPods:            pods,
		MultiAttachErrorReported: w.MultiAttachErrorReported,
	}
}

// AllVolumesToAttach yields every volume that should be attached to a node, in no particular order. It copies nothing,
// allocates nothing and holds no lock, so that the caller may change the state meanwhile: each row that is there all the
// time is yielded exactly once, as it was at one moment; one that comes or goes meanwhile may be yielded or not. A row never
// changes. It is shared: whoever changes it changes it for all.
func (d *ClusterDesiredStateOfWorld) AllVolumesToAttach() iter.Seq[*ClusterVolumeToAttach] {
	return func(yield func(*ClusterVolumeToAttach) bool) {
		for row := range d.attachments.rows.all {
			if !yield(&row.ClusterVolumeToAttach) {
				return
			}
		}
	}
}

// VolumesOfNode yields the volumes that should be attached to a node, in no particular order. The set of rows is that of the
// moment in which the loop begins; otherwise it is as [ClusterDesiredStateOfWorld.AllVolumesToAttach].
func (d *ClusterDesiredStateOfWorld) VolumesOfNode(name types.NodeName) iter.Seq[*ClusterVolumeToAttach] {
	return func(yield func(*ClusterVolumeToAttach) bool) {
		var buffer [manyOfNode]*wantedAttachment
		yieldWanted(d.rowsOfNode(name, buffer[:0]), yield)
	}
}

// VolumesOfPod yields the volumes that a pod wants, as VolumesOfNode does.
func (d *ClusterDesiredStateOfWorld) VolumesOfPod(podName volume.UniquePodName) iter.Seq[*ClusterVolumeToAttach] {
	return func(yield func(*ClusterVolumeToAttach) bool) {
		var buffer [few]*wantedAttachment
		yieldWanted(d.rowsOfPod(podName, buffer[:0]), yield)
	}
}

// NodesOfVolume yields the nodes to which a volume should be attached, as VolumesOfNode does.
func (d *ClusterDesiredStateOfWorld) NodesOfVolume(name v1.UniqueVolumeName) iter.Seq[*ClusterVolumeToAttach] {
	return func(yield func(*ClusterVolumeToAttach) bool) {
		var buffer [few]*wantedAttachment
		yieldWanted(d.rowsOfVolume(name, buffer[:0]), yield)
	}
}

func yieldWanted(rows []*wantedAttachment, yield func(*ClusterVolumeToAttach) bool) {
	for _, row := range rows {
		if !yield(&row.ClusterVolumeToAttach) {
			return
		}
	}
}

func (d *ClusterDesiredStateOfWorld) rowsOfNode(name types.NodeName, rows []*wantedAttachment) []*wantedAttachment {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if node := d.nodes[name]; node != nil {
		return collect(node.attachments, rows)
	}
	return rows
}

func (d *ClusterDesiredStateOfWorld) rowsOfVolume(name v1.UniqueVolumeName, rows []*wantedAttachment) []*wantedAttachment {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.attachments.ofPartner(name, rows)
}

func (d *ClusterDesiredStateOfWorld) rowsOfPod(podName volume.UniquePodName, rows []*wantedAttachment) []*wantedAttachment {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for s := d.pods.byPartner[podName]; s != nil; s = s.next {
		rows = append(rows, d.attachments.get(s.member.key.owner))
	}
	return rows
}
