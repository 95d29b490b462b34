package cluster

import (
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// nodeRow is a node that is there, or to which volumes may be attached.
type nodeRow struct {
	name    types.NodeName
	uid     types.UID // of the node that is or was there last; empty when none was
	present bool

	attachments []*attachmentRow // by the name of the volume
	perPlugin   map[string]int
	// listedUse says that it has listed any volume as in use since it has its UID. An empty list is also what an object has
	// that another program has just made, whatever runs on the node.
	listedUse bool

	// changes are the volumes whose report has changed since the node's status was written last, each with the
	// version of that change. version is that of the last change.
	changes map[v1.UniqueVolumeName]uint64
	version uint64
}

// node returns the record of a node, and makes one that is not present when there is none.
func (t *table) node(name types.NodeName) *nodeRow {
	node := t.nodes[name]
	if node == nil {
		node = &nodeRow{name: name, perPlugin: map[string]int{}, changes: map[v1.UniqueVolumeName]uint64{}}
		t.nodes[name] = node
	}
	return node
}

// check refuses a node that is not there; uid is that of the node that is meant, and empty when any of the name is.
func (n *nodeRow) check(name types.NodeName, uid types.UID) error {
	switch {
	case n == nil || !n.present:
		return nodeUnknown(name, "", "")
	case uid != "" && uid != n.uid:
		return nodeUnknown(name, uid, n.uid)
	}
	return nil
}

// count adds to the number of volumes of a plugin.
func (n *nodeRow) count(pluginName string, by int) {
	n.perPlugin[pluginName] += by
	if n.perPlugin[pluginName] == 0 {
		delete(n.perPlugin, pluginName)
	}
}

// AddNode says that there is a node. One of the same name with another UID is another node: what was attached to the old one
// may be attached to it still, and is uncertain. The new node's report lists none of it. The new node is assumed to use all
// of it, and inherits no device path. The machine may be the same and may go on using what it used: an empty list of volumes
// in use, which a new object has by itself, does not say that it does not.
func (a *ActualStateOfWorld) AddNode(name types.NodeName, uid types.UID) {
	a.mu.Lock()
	node := a.table.node(name)
	if node.present && node.uid == uid {
		a.mu.Unlock()
		return
	}
	var changed []attachmentKey
	if node.uid != "" && node.uid != uid {
		node.listedUse = false
		changed = a.table.endNode(node, func(row *attachmentRow) { row.InUse, row.inherited = AssumedInUse, true })
	}
	node.uid, node.present = uid, true
	report := a.table.reportAll(node)
	a.mu.Unlock()
	a.options.changed(changed...)
	if report {
		a.options.reportChanged(name)
	}
}

// reportAll records a change of the report for all volumes of a node, and reports whether there are any.
func (t *table) reportAll(node *nodeRow) bool {
	for _, row := range node.attachments {
		t.reportChange(node, row.VolumeName)
	}
	return len(node.attachments) > 0
}

// DeleteNode records that a node is gone. Its attachments are no longer reported. They are uncertain and stay until each is
// marked as detached, because the storage may still have them. With the last one, the node is forgotten. The node still
// counts as using what it last listed as in use: without its object, its processes may still run. If uid is that of an
// earlier node of that name, DeleteNode does nothing. An empty uid means any node of that name.
func (a *ActualStateOfWorld) DeleteNode(name types.NodeName, uid types.UID) {
	a.mu.Lock()
	node := a.table.nodes[name]
	if node.check(name, uid) != nil {
		a.mu.Unlock()
		return
	}
	changed := a.table.endNode(node, func(*attachmentRow) {})
	node.present = false
	if len(node.attachments) == 0 {
		delete(a.table.nodes, name)
	}
	a.mu.Unlock()
	a.options.changed(changed...)
}

// endNode makes all attachments of a node uncertain, lets then change each row, forgets the changes of the node's report, and
// returns the keys of the rows, by name.
func (t *table) endNode(node *nodeRow, then func(row *attachmentRow)) []attachmentKey {
	clear(node.changes)
	delete(t.unreported, node.name)
	keys := make([]attachmentKey, 0, len(node.attachments))
	for _, row := range node.attachments {
		row.AttachState, row.Reported, row.attempt = transitions[row.AttachState][markedUncertain].to, false, nil
		row.DetachRequestedSince, row.ForcedDetachAllowed = time.Time{}, false
		then(row)
		keys = append(keys, row.key())
	}
	return keys
}

// NodeUID returns the UID of a node that is there, and false when there is none of that name.
func (a *ActualStateOfWorld) NodeUID(name types.NodeName) (types.UID, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	node := a.table.nodes[name]
	if node == nil || !node.present {
		return "", false
	}
	return node.uid, true
}

// Nodes returns the nodes that are there, and those that have gone and to which volumes may still be attached, sorted.
func (a *ActualStateOfWorld) Nodes() []types.NodeName {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return slices.Sorted(maps.Keys(a.table.nodes))
}

// AttachCount returns how many volumes of a plugin are, may be or are being attached to a node: what its limit counts.
func (a *ActualStateOfWorld) AttachCount(name types.NodeName, pluginName string) int {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if node := a.table.nodes[name]; node != nil {
		return node.perPlugin[pluginName]
	}
	return 0
}
