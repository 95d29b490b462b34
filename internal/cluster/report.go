package cluster

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// NodeReport is what a node's status must say about its attachments, or the changes of that. After it is written, pass it
// to [ActualStateOfWorld.ReportWritten].
type NodeReport struct {
	// NodeName and NodeUID identify the node.
	NodeName types.NodeName
	NodeUID  types.UID
	// Version is the version of the last change in the report. Each change has a larger version than the one before.
	Version uint64
	// Attached are volumes that are attached for certain and not withdrawn, by name. A report holds all of them, a report
	// of changes only the changed ones.
	Attached []v1.AttachedVolume
	// Withdrawn are the volumes that the status must no longer list, sorted. Only a report of changes has them.
	Withdrawn []v1.UniqueVolumeName
}

// reportChange records that the node's status must change for a volume. It returns false if the node is gone.
func (t *table) reportChange(node *nodeRow, name v1.UniqueVolumeName) bool {
	if !node.present {
		return false
	}
	t.version++
	node.version = t.version
	node.changes[name] = t.version
	t.unreported[node.name] = struct{}{}
	return true
}

// NodesToReport returns the nodes whose status lacks a change, sorted. The cost depends only on their number.
func (a *ActualStateOfWorld) NodesToReport() []types.NodeName {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return slices.Sorted(maps.Keys(a.table.unreported))
}

// Report returns all that the status of a node must say, and false if the node is gone.
func (a *ActualStateOfWorld) Report(name types.NodeName) (NodeReport, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	node := a.table.nodes[name]
	if node == nil || !node.present {
		return NodeReport{}, false
	}
	r := NodeReport{NodeName: name, NodeUID: node.uid, Version: node.version}
	for _, row := range node.attachments {
		r.add(row)
	}
	return r, true
}

// ReportChanges returns the changes since the last report that was written for a node, and false if there are none. The
// cost depends only on the number of changes.
func (a *ActualStateOfWorld) ReportChanges(name types.NodeName) (NodeReport, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	node := a.table.nodes[name]
	if node == nil || len(node.changes) == 0 {
		return NodeReport{}, false
	}
	r := NodeReport{NodeName: name, NodeUID: node.uid, Version: node.version}
	for _, volumeName := range slices.Sorted(maps.Keys(node.changes)) {
		if row := a.table.find(attachmentKey{name, volumeName}); row == nil || !row.Reported {
			r.Withdrawn = append(r.Withdrawn, volumeName)
		} else {
			r.add(row)
		}
	}
	return r, true
}

func (r *NodeReport) add(row *attachmentRow) {
	if row.Reported {
		r.Attached = append(r.Attached, v1.AttachedVolume{Name: row.VolumeName, DevicePath: row.DevicePath})
	}
}

// ReportWritten records that the status of a node contains the report r. Changes since r was made stay to be reported. If
// it is not certain that the status was written, do not call it. A report for an earlier node of the same name has no
// effect, because all changes of the present node are newer.
func (a *ActualStateOfWorld) ReportWritten(r NodeReport) {
	a.mu.Lock()
	defer a.mu.Unlock()
	node := a.table.nodes[r.NodeName]
	if node == nil {
		return
	}
	for name, version := range node.changes {
		if version <= r.Version {
			delete(node.changes, name)
		}
	}
	if len(node.changes) == 0 {
		delete(a.table.unreported, node.name)
	}
}
