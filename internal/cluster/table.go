package cluster

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/rows"
	"github.com/volumekit/volumekit/operationexecutor"
)

// table holds the rows of nodes and attachments, and changes them by the table of transitions. It calls no hooks. The lock of the
// [ActualStateOfWorld] guards it.
type table struct {
	nodes   map[types.NodeName]*nodeRow
	volumes map[v1.UniqueVolumeName][]*attachmentRow // by the name of the node
	// unreported are the nodes whose status lacks a change.
	unreported map[types.NodeName]struct{}
	// version is the version of the last change in any node's report.
	version uint64
}

// transition makes one transition of an attachment, if the table allows it.
func (t *table) transition(e event, n *attachmentChange) (hookCalls, error) {
	node, old := t.nodes[n.key.node], t.find(n.key)
	state := NotAttached
	if old != nil {
		state = old.AttachState
	}
	if e == succeeded || e == begun {
		if err := node.check(n.key.node, n.uid); err != nil {
			return hookCalls{}, err
		}
	}
	if e == ended && (old == nil || old.attempt != n.attempt) {
		return hookCalls{}, nil
	}
	m := transitions[state][e]
	if err := t.checkCondition(m.given, n, node, old); err != nil {
		return hookCalls{}, refuse(n.key, state, e, err)
	}
	return t.applyTransition(m, e, n, old), nil
}

// find returns the row of an attachment, or nil.
func (t *table) find(key attachmentKey) *attachmentRow {
	return rows.Find(t.volumes[key.volume], key.node, (*attachmentRow).compareNode)
}

// applyTransition makes a legal transition.
func (t *table) applyTransition(m transition, e event, n *attachmentChange, old *attachmentRow) hookCalls {
	switch {
	case m.to != NotAttached:
		node := t.node(n.key.node)
		if e == found && node.uid == "" {
			node.uid = n.uid // The record names the node that had the volume.
		}
		return t.put(node, n.key, old, nextRow(m, e, n, node, old))
	case old != nil:
		return t.drop(n.key, old)
	}
	return hookCalls{}
}

// nextRow returns the row of an attachment after a transition.
func nextRow(m transition, e event, n *attachmentChange, node *nodeRow, old *attachmentRow) attachmentRow {
	var row attachmentRow
	if old != nil {
		row = *old
	} else {
		row = newRow(n, node)
	}
	if e == succeeded {
		row.succeed(node)
	}
	if e == succeeded || e == begun {
		row.DetachRequestedSince, row.ForcedDetachAllowed = time.Time{}, false // The volume is wanted again.
	}
	row.AttachState = m.to
	row.fillIn(e, n)
	row.attempt = nil
	if m.to == Attaching {
		row.attempt = n.attempt
		if old != nil {
			row.attempt = old.attempt
		}
	}
	if m.reporting != unchanged {
		row.Reported = m.reporting == listed
	}
	if e == found && n.uid != "" && n.uid != node.uid {
		row.inherit(node)
	}
	return row
}

func newRow(n *attachmentChange, node *nodeRow) attachmentRow {
	return attachmentRow{Attachment: Attachment{
		AttachedVolume: operationexecutor.AttachedVolume{
			VolumeName: n.key.volume, NodeName: n.key.node, PluginName: n.pluginName, PluginIsAttachable: true,
		},
		NodeUID: node.uid, InUse: AssumedInUse, Reported: n.inStatus,
	}}
}

// inherit marks an attachment that was made while the node had another UID. The node's use of it is unknown until the node
// lists volumes in use under its present UID.
func (r *attachmentRow) inherit(node *nodeRow) {
	r.inherited = true
	if r.InUse == NotInUse && !node.listedUse {
		r.InUse = AssumedInUse
	}
}

// succeed updates the row after a successful attach. A device path on an earlier node of that name is dropped.
func (r *attachmentRow) succeed(node *nodeRow) {
	if r.NodeUID != node.uid {
		r.NodeUID, r.DevicePath = node.uid, ""
	}
	if r.AttachState != Attached && r.InUse == NotInUse {
		r.InUse = AssumedInUse // The node may begin to use the volume now.
	}
}

// fillIn takes spec and device path from n. Only a success replaces known values.
func (r *attachmentRow) fillIn(e event, n *attachmentChange) {
	if n.spec != nil && (e == succeeded || r.VolumeSpec == nil) {
		r.VolumeSpec = n.spec
	}
	if n.devicePath != "" && (e == succeeded || r.DevicePath == "") {
		r.DevicePath = n.devicePath
	}
}

// put stores row for an attachment, unless it equals old, the present row. old is nil without one.
func (t *table) put(node *nodeRow, key attachmentKey, old *attachmentRow, row attachmentRow) hookCalls {
	if old != nil && row == *old {
		return hookCalls{}
	}
	reported := row.reportDiffers(old)
	if old != nil {
		*old = row
	} else {
		node.count(row.PluginName, +1)
		node.attachments = rows.Insert(node.attachments, &row, key.volume, (*attachmentRow).compareVolume)
		t.volumes[key.volume] = rows.Insert(t.volumes[key.volume], &row, key.node, (*attachmentRow).compareNode)
	}
	if !reported {
		return hookCalls{row: true}
	}
	return hookCalls{row: true, report: t.reportChange(node, key.volume)}
}

// reportDiffers reports whether the node's report differs between the row and old, which may be nil.
func (r *attachmentRow) reportDiffers(old *attachmentRow) bool {
	if old == nil {
		return r.AttachState == Attached // In another state it was recovered from the node's report.
	}
	return r.Reported != old.Reported || r.Reported && r.DevicePath != old.DevicePath
}

// drop removes an attachment. It also removes its node if that is gone and has no other attachment.
func (t *table) drop(key attachmentKey, old *attachmentRow) hookCalls {
	node := t.nodes[key.node]
	node.attachments = rows.Remove(node.attachments, key.volume, (*attachmentRow).compareVolume)
	rows.SetList(t.volumes, key.volume, rows.Remove(t.volumes[key.volume], key.node, (*attachmentRow).compareNode))
	node.count(old.PluginName, -1)
	calls := hookCalls{row: true, report: old.Reported && t.reportChange(node, key.volume)}
	if !node.present && len(node.attachments) == 0 {
		delete(t.nodes, key.node)
	}
	return calls
}
