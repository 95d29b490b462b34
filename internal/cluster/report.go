package cluster

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// NodeReport is what a node is to be told of its attachments. Give it to [ActualStateOfWorld.ReportWritten] when
// the node has been told.
type NodeReport struct {
	// NodeName and NodeUID are the node.
	NodeName types.NodeName
	NodeUID  types.UID
	// Version is that of the last change that the report knows. It grows with each change and never comes again.
	Version uint64
	// Attached are the volumes that are attached for certain and not withdrawn, by name: all of them, or those of which the
	// node is to be told otherwise than before.
	Attached []v1.AttachedVolume
	// Withdrawn are the volumes that are no longer to be listed, sorted. Only a report of changes has them.
	Withdrawn []v1.UniqueVolumeName
}

// reportChange notes that a node is to be told otherwise of a volume, and reports whether it is there to be told.
func (a *ActualStateOfWorld) reportChange(node *knownNode, name v1.UniqueVolumeName) bool {
	if !node.present {
		return false
	}
	a.version++
	node.version = a.version
	node.changes[name] = a.version
	a.unreported[node.name] = struct{}{}
	return true
}

// NodesToReport returns the nodes that have not been told of all changes, sorted. It costs as much as they are.
func (a *ActualStateOfWorld) NodesToReport() []types.NodeName {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return slices.Sorted(maps.Keys(a.unreported))
}

// Report returns all that a node is to be told, and false when the node is not there.
func (a *ActualStateOfWorld) Report(name types.NodeName) (NodeReport, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	node := a.nodes[name]
	if node == nil || !node.present {
		return NodeReport{}, false
	}
	r := NodeReport{NodeName: name, NodeUID: node.uid, Version: node.version}
	for _, row := range node.attachments {
		r.add(row)
	}
	return r, true
}

// ReportChanges returns what a node is to be told otherwise than when it was told last, and false when there is no such
// thing. It costs as much as has changed.
func (a *ActualStateOfWorld) ReportChanges(name types.NodeName) (NodeReport, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	node := a.nodes[name]
	if node == nil || len(node.changes) == 0 {
		return NodeReport{}, false
	}
	r := NodeReport{NodeName: name, NodeUID: node.uid, Version: node.version}
	for _, volumeName := range slices.Sorted(maps.Keys(node.changes)) {
		if row := a.find(attachmentKey{name, volumeName}); row == nil || !row.Reported {
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

// ReportWritten says that a node has been told what r, a report or one of changes, says. What has changed since r was made
// is still to be told; whoever does not know whether the node was told says nothing. A report for an earlier node of that
// name changes nothing: all that this one is to be told is newer.
func (a *ActualStateOfWorld) ReportWritten(r NodeReport) {
	a.mu.Lock()
	defer a.mu.Unlock()
	node := a.nodes[r.NodeName]
	if node == nil {
		return
	}
	for name, version := range node.changes {
		if version <= r.Version {
			delete(node.changes, name)
		}
	}
	if len(node.changes) == 0 {
		delete(a.unreported, node.name)
	}
}
