package cluster

import (
	"iter"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/rows"
)

// Attachment returns what is known of a volume on a node, and false when it is not, and may not be, attached.
func (a *ActualStateOfWorld) Attachment(volumeName v1.UniqueVolumeName, nodeName types.NodeName) (Attachment, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	row := a.table.find(attachmentKey{nodeName, volumeName})
	if row == nil {
		return Attachment{}, false
	}
	return row.Attachment, true
}

// AttachState returns what is known of a volume's attachment to a node.
func (a *ActualStateOfWorld) AttachState(volumeName v1.UniqueVolumeName, nodeName types.NodeName) AttachmentState {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if row := a.table.find(attachmentKey{nodeName, volumeName}); row != nil {
		return row.AttachState
	}
	return NotAttached
}

// IsAttachmentUncertain implements the executor's optional interface.
func (a *ActualStateOfWorld) IsAttachmentUncertain(volumeName v1.UniqueVolumeName, nodeName types.NodeName) bool {
	return a.AttachState(volumeName, nodeName) == AttachUncertain
}

// AllAttachments yields a copy of every attachment, uncertain ones included, as they are when the loop begins, by node and
// volume. No lock is held meanwhile.
func (a *ActualStateOfWorld) AllAttachments() iter.Seq[*Attachment] {
	return rows.Pointers(a.allAttachments)
}

func (a *ActualStateOfWorld) allAttachments() []Attachment {
	a.mu.RLock()
	defer a.mu.RUnlock()
	copies := make([]Attachment, 0, len(a.table.volumes))
	for _, name := range slices.Sorted(maps.Keys(a.table.nodes)) {
		copies = rows.AppendCopies(copies, a.table.nodes[name].attachments, (*attachmentRow).row)
	}
	return copies
}

// AttachmentsOfNode yields a copy of what is, or may be, attached to a node when the loop begins, by volume. No lock is held
// meanwhile.
func (a *ActualStateOfWorld) AttachmentsOfNode(name types.NodeName) iter.Seq[*Attachment] {
	return rows.Pointers(func() []Attachment {
		a.mu.RLock()
		defer a.mu.RUnlock()
		if node := a.table.nodes[name]; node != nil {
			return rows.AppendCopies(nil, node.attachments, (*attachmentRow).row)
		}
		return nil
	})
}

// AttachmentsOfVolume yields a copy of a volume's attachments, by node, as AttachmentsOfNode does.
func (a *ActualStateOfWorld) AttachmentsOfVolume(name v1.UniqueVolumeName) iter.Seq[*Attachment] {
	return rows.Pointers(func() []Attachment {
		a.mu.RLock()
		defer a.mu.RUnlock()
		return rows.AppendCopies(nil, a.table.volumes[name], (*attachmentRow).row)
	})
}

func (r *attachmentRow) row() Attachment { return r.Attachment }

// NodesOfVolume implements operationexecutor.VolumeNodes: the nodes to which the volume is, may be or is being attached,
// sorted.
func (a *ActualStateOfWorld) NodesOfVolume(name v1.UniqueVolumeName) []types.NodeName {
	return a.OtherNodesOfVolume(name, "")
}

// OtherNodesOfVolume returns the other nodes to which a volume is, may be or is being attached, sorted. A volume that only
// one node may have must first leave all of these. Uncertain attachments count.
func (a *ActualStateOfWorld) OtherNodesOfVolume(name v1.UniqueVolumeName, nodeName types.NodeName) []types.NodeName {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.table.others(name, nodeName)
}

// others is OtherNodesOfVolume for callers that hold the lock.
func (t *table) others(name v1.UniqueVolumeName, nodeName types.NodeName) []types.NodeName {
	var names []types.NodeName
	for _, row := range t.volumes[name] {
		if row.NodeName != nodeName {
			names = append(names, row.NodeName)
		}
	}
	return names
}
