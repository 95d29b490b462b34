package cluster

import (
	"iter"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/rows"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// VolumeExists reports whether any pod on the node wants the volume.
func (d *DesiredStateOfWorld) VolumeExists(volumeName v1.UniqueVolumeName, nodeName types.NodeName) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.find(attachmentKey{nodeName, volumeName}) != nil
}

// PodExists reports whether the pod wants the volume on the node.
func (d *DesiredStateOfWorld) PodExists(podName volume.UniquePodName, volumeName v1.UniqueVolumeName, nodeName types.NodeName) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return rows.Find(d.pods[podName], attachmentKey{nodeName, volumeName}, (*wantedAttachment).compare) != nil
}

// VolumeToAttach returns what the executor needs to attach a volume to a node, with the pods ordered by UID. It returns
// false if no pod on that node wants the volume.
func (d *DesiredStateOfWorld) VolumeToAttach(volumeName v1.UniqueVolumeName, nodeName types.NodeName) (operationexecutor.VolumeToAttach, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	row := d.find(attachmentKey{nodeName, volumeName})
	if row == nil {
		return operationexecutor.VolumeToAttach{}, false
	}
	return row.toAttach(), true
}

// VolumesToAttach returns what the executor needs to attach a volume to every node on which pods want it, by node.
func (d *DesiredStateOfWorld) VolumesToAttach(volumeName v1.UniqueVolumeName) []operationexecutor.VolumeToAttach {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var volumes []operationexecutor.VolumeToAttach
	for _, w := range d.volumes[volumeName] {
		volumes = append(volumes, w.toAttach())
	}
	return volumes
}

func (w *wantedAttachment) toAttach() operationexecutor.VolumeToAttach {
	return operationexecutor.VolumeToAttach{
		VolumeName:               w.VolumeName,
		VolumeSpec:               w.VolumeSpec,
		NodeName:                 w.NodeName,
		ScheduledPods:            slices.Clone(w.pods),
		MultiAttachErrorReported: w.MultiAttachErrorReported,
	}
}

// AllVolumesToAttach yields copies of the volumes that should be attached to nodes, by node and volume. It copies all of
// them when the loop begins, and holds no lock during the loop.
func (d *DesiredStateOfWorld) AllVolumesToAttach() iter.Seq[*WantedAttachment] {
	return rows.Pointers(d.allVolumesToAttach)
}

func (d *DesiredStateOfWorld) allVolumesToAttach() []WantedAttachment {
	d.mu.RLock()
	defer d.mu.RUnlock()
	copies := make([]WantedAttachment, 0, len(d.volumes))
	for _, name := range slices.Sorted(maps.Keys(d.nodes)) {
		copies = rows.AppendCopies(copies, d.nodes[name], (*wantedAttachment).row)
	}
	return copies
}

// VolumesOfNode yields copies of the volumes that should be attached to a node, by name. It copies all of them when the
// loop begins, and holds no lock during the loop.
func (d *DesiredStateOfWorld) VolumesOfNode(name types.NodeName) iter.Seq[*WantedAttachment] {
	return rows.Pointers(func() []WantedAttachment {
		d.mu.RLock()
		defer d.mu.RUnlock()
		return rows.AppendCopies(nil, d.nodes[name], (*wantedAttachment).row)
	})
}

// VolumesOfPod yields the volumes that a pod wants, by node and volume, as VolumesOfNode does.
func (d *DesiredStateOfWorld) VolumesOfPod(podName volume.UniquePodName) iter.Seq[*WantedAttachment] {
	return rows.Pointers(func() []WantedAttachment {
		d.mu.RLock()
		defer d.mu.RUnlock()
		return rows.AppendCopies(nil, d.pods[podName], (*wantedAttachment).row)
	})
}

// NodesOfVolume yields the nodes to which a volume should be attached, by name, as VolumesOfNode does.
func (d *DesiredStateOfWorld) NodesOfVolume(name v1.UniqueVolumeName) iter.Seq[*WantedAttachment] {
	return rows.Pointers(func() []WantedAttachment {
		d.mu.RLock()
		defer d.mu.RUnlock()
		return rows.AppendCopies(nil, d.volumes[name], (*wantedAttachment).row)
	})
}

func (w *wantedAttachment) row() WantedAttachment { return w.WantedAttachment }
