package cache

import (
	"iter"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Attachment returns what is known of a volume on a node, and false when it is not, and may not be, attached.
func (a *ClusterActualStateOfWorld) Attachment(volumeName v1.UniqueVolumeName, nodeName types.NodeName) (ClusterAttachedVolume, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	row := a.find(attachmentKey{nodeName, volumeName})
	if row == nil {
		return ClusterAttachedVolume{}, false
	}
	return row.ClusterAttachedVolume, true
}

// AttachState returns what is known of a volume's attachment to a node.
func (a *ClusterActualStateOfWorld) AttachState(volumeName v1.UniqueVolumeName, nodeName types.NodeName) AttachState {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if row := a.find(attachmentKey{nodeName, volumeName}); row != nil {
		return row.AttachState
	}
	return NotAttached
}

// IsAttachmentUncertain implements the executor's optional interface.
func (a *ClusterActualStateOfWorld) IsAttachmentUncertain(volumeName v1.UniqueVolumeName, nodeName types.NodeName) bool {
	return a.AttachState(volumeName, nodeName) == AttachUncertain
}

// AllAttachments yields a copy of every attachment, uncertain ones included, as they are when the loop begins, by node and
// volume. No lock is held meanwhile.
func (a *ClusterActualStateOfWorld) AllAttachments() iter.Seq[*ClusterAttachedVolume] {
	return pointers(a.allAttachments)
}

func (a *ClusterActualStateOfWorld) allAttachments() []ClusterAttachedVolume {
	a.mu.RLock()
	defer a.mu.RUnlock()
	rows := make([]ClusterAttachedVolume, 0, len(a.volumes))
	for _, name := range slices.Sorted(maps.Keys(a.nodes)) {
		rows = appendCopies(rows, a.nodes[name].attachments, (*clusterRow).row)
	}
	return rows
}

// AttachmentsOfNode yields a copy of what is, or may be, attached to a node when the loop begins, by volume. No lock is held
// meanwhile.
func (a *ClusterActualStateOfWorld) AttachmentsOfNode(name types.NodeName) iter.Seq[*ClusterAttachedVolume] {
	return pointers(func() []ClusterAttachedVolume {
		a.mu.RLock()
		defer a.mu.RUnlock()
		if node := a.nodes[name]; node != nil {
			return appendCopies(nil, node.attachments, (*clusterRow).row)
		}
		return nil
	})
}

// AttachmentsOfVolume yields a copy of a volume's attachments, by node, as AttachmentsOfNode does.
func (a *ClusterActualStateOfWorld) AttachmentsOfVolume(name v1.UniqueVolumeName) iter.Seq[*ClusterAttachedVolume] {
	return pointers(func() []ClusterAttachedVolume {
		a.mu.RLock()
		defer a.mu.RUnlock()
		return appendCopies(nil, a.volumes[name], (*clusterRow).row)
	})
}

func (r *clusterRow) row() ClusterAttachedVolume { return r.ClusterAttachedVolume }

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
	for _, row := range a.volumes[name] {
		if row.NodeName != nodeName {
			names = append(names, row.NodeName)
		}
	}
	return names
}
