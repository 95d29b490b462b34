package cache

import (
	"cmp"
	"iter"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Attachment returns what is known of a volume on a node, and false when it is not, and may not be, attached.
func (a *ClusterActualStateOfWorld) Attachment(volumeName v1.UniqueVolumeName, nodeName types.NodeName) (ClusterAttachedVolume, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	row := a.attachments.get(attachmentKey{nodeName, volumeName})
	if row == nil {
		return ClusterAttachedVolume{}, false
	}
	return row.ClusterAttachedVolume, true
}

// AttachState returns what is known of a volume's attachment to a node.
func (a *ClusterActualStateOfWorld) AttachState(volumeName v1.UniqueVolumeName, nodeName types.NodeName) AttachState {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if row := a.attachments.get(attachmentKey{nodeName, volumeName}); row != nil {
		return row.AttachState
	}
	return NotAttached
}

// IsAttachmentUncertain implements the executor's optional interface.
func (a *ClusterActualStateOfWorld) IsAttachmentUncertain(volumeName v1.UniqueVolumeName, nodeName types.NodeName) bool {
	return a.AttachState(volumeName, nodeName) == AttachUncertain
}

// AllAttachments yields every attachment, uncertain ones included, in no particular order. It copies nothing, allocates
// nothing and holds no lock, so that the caller may change the state meanwhile: each row that is there all the time is
// yielded exactly once, as it was at one moment; one that comes or goes meanwhile may be yielded or not. A row never
// changes. It is shared: whoever changes it changes it for all.
func (a *ClusterActualStateOfWorld) AllAttachments() iter.Seq[*ClusterAttachedVolume] {
	return func(yield func(*ClusterAttachedVolume) bool) {
		for row := range a.attachments.rows.all {
			if !yield(&row.ClusterAttachedVolume) {
				return
			}
		}
	}
}

// AttachmentsOfNode yields what is, or may be, attached to a node, in no particular order. The set of rows is that of the
// moment in which the loop begins; otherwise it is as [ClusterActualStateOfWorld.AllAttachments].
func (a *ClusterActualStateOfWorld) AttachmentsOfNode(name types.NodeName) iter.Seq[*ClusterAttachedVolume] {
	return func(yield func(*ClusterAttachedVolume) bool) {
		var buffer [manyOfNode]*clusterRow
		yieldAttachments(a.rowsOfNode(name, buffer[:0]), yield)
	}
}

// AttachmentsOfVolume yields the nodes to which a volume is, or may be, attached, as AttachmentsOfNode does.
func (a *ClusterActualStateOfWorld) AttachmentsOfVolume(name v1.UniqueVolumeName) iter.Seq[*ClusterAttachedVolume] {
	return func(yield func(*ClusterAttachedVolume) bool) {
		var buffer [few]*clusterRow
		yieldAttachments(a.rowsOfVolume(name, buffer[:0]), yield)
	}
}

// manyOfNode is for how many volumes of one node a query needs no memory but its stack. Few machines can have more.
const manyOfNode = 64

func yieldAttachments(rows []*clusterRow, yield func(*ClusterAttachedVolume) bool) {
	for _, row := range rows {
		if !yield(&row.ClusterAttachedVolume) {
			return
		}
	}
}

func (a *ClusterActualStateOfWorld) rowsOfNode(name types.NodeName, rows []*clusterRow) []*clusterRow {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if node := a.nodes[name]; node != nil {
		return collect(node.attachments, rows)
	}
	return rows
}

func (a *ClusterActualStateOfWorld) rowsOfVolume(name v1.UniqueVolumeName, rows []*clusterRow) []*clusterRow {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.attachments.ofPartner(name, rows)
}

// NodesOfVolume implements operationexecutor.VolumeNodes: the nodes to which the volume is, may be or is being attached,
// sorted.
func (a *ClusterActualStateOfWorld) NodesOfVolume(name v1.UniqueVolumeName) []types.NodeName {
	return a.OtherNodesOfVolume(name, "")
}

// OtherNodesOfVolume returns who beside a node has a volume: the nodes to which it is, may be or is being attached, sorted.
// For a volume that one node alone may have, whoever is there has to let go first. What is uncertain counts.
func (a *ClusterActualStateOfWorld) OtherNodesOfVolume(name v1.UniqueVolumeName, nodeName types.NodeName) []types.NodeName {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.others(name, nodeName)
}

// others is OtherNodesOfVolume for whoever holds the lock.
func (a *ClusterActualStateOfWorld) others(name v1.UniqueVolumeName, nodeName types.NodeName) []types.NodeName {
	var names []types.NodeName
	for x := range a.attachments.byPartner[name].all {
		if x.key.owner != nodeName {
			names = append(names, x.key.owner)
		}
	}
	slices.Sort(names)
	return names
}

// sortKeys sorts by node and volume.
func sortKeys(keys []attachmentKey) {
	slices.SortFunc(keys, func(a, b attachmentKey) int {
		return cmp.Or(cmp.Compare(a.owner, b.owner), cmp.Compare(a.partner, b.partner))
	})
}
