package cluster

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// UseState is whether a node uses a volume that is attached to it.
type UseState uint8

// The states of use. A volume that was just attached is assumed to be in use until the node's status says otherwise. If a
// detach waits only for that, read the status again.
const (
	AssumedInUse UseState = iota
	ReportedInUse
	NotInUse
)

// String returns the state in lower case.
func (s UseState) String() string {
	return [...]string{"assumed to be in use", "in use", "not in use"}[s]
}

// SetVolumesInUse records the volumes that a node lists as in use. All others of that node are not in use. But a volume
// that was attached while the node had another UID stays assumed to be in use until the node lists any volume under its
// present UID. The list must be read or written after all present attachments were marked. If it is older, the executor
// notices that when it reads the node before a detach. The cost depends on the number of the node's volumes. If the node is
// missing, or has another UID, the error matches [ErrNodeUnknown].
func (a *ActualStateOfWorld) SetVolumesInUse(name types.NodeName, uid types.UID, inUse []v1.UniqueVolumeName) error {
	a.mu.Lock()
	node := a.table.nodes[name]
	if err := node.check(name, uid); err != nil {
		a.mu.Unlock()
		return err
	}
	changed := a.table.setInUse(node, inUse)
	a.mu.Unlock()
	a.options.changed(changed...)
	return nil
}

// TrustVolumesInUse says that the node itself wrote its list of volumes in use. Then even an empty list counts for volumes
// that were attached while the node had another UID. Call it before [ActualStateOfWorld.SetVolumesInUse]. It does nothing
// for a node that is missing or has another UID.
func (a *ActualStateOfWorld) TrustVolumesInUse(name types.NodeName, uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if node := a.table.nodes[name]; node.check(name, uid) == nil {
		node.listedUse = true
	}
}

// setInUse updates the rows whose use changes, and returns their keys.
func (t *table) setInUse(node *nodeRow, inUse []v1.UniqueVolumeName) (changed []attachmentKey) {
	node.listedUse = node.listedUse || len(inUse) > 0
	listed := make(map[v1.UniqueVolumeName]bool, len(inUse))
	for _, volumeName := range inUse {
		listed[volumeName] = true
	}
	for _, row := range node.attachments {
		use := NotInUse
		switch {
		case listed[row.VolumeName]:
			use = ReportedInUse
		case row.inherited && !node.listedUse:
			use = AssumedInUse
		}
		if row.InUse != use {
			row.InUse = use
			changed = append(changed, row.key())
		}
	}
	return changed
}

// VolumesInUse returns the volumes that a node uses, or is assumed to, sorted.
func (a *ActualStateOfWorld) VolumesInUse(name types.NodeName) []v1.UniqueVolumeName {
	var names []v1.UniqueVolumeName
	for row := range a.AttachmentsOfNode(name) {
		if row.InUse != NotInUse {
			names = append(names, row.VolumeName)
		}
	}
	return names
}

// RequestDetach requests the detach of a volume from a node, and returns the time of the request. An earlier request keeps
// its time, even after failed attempts, until it is cancelled. RequestDetach returns zero if the volume is certainly not
// attached. Attaching the volume again cancels the request.
func (a *ActualStateOfWorld) RequestDetach(volumeName v1.UniqueVolumeName, nodeName types.NodeName) (since time.Time) {
	now := time.Now()
	a.change(attachmentKey{nodeName, volumeName}, func(row *attachmentRow) {
		if row.DetachRequestedSince.IsZero() {
			row.DetachRequestedSince = now
		}
		since = row.DetachRequestedSince
	})
	return since
}

// CancelDetachRequest cancels a request for a detach, and the permission for a forced one.
func (a *ActualStateOfWorld) CancelDetachRequest(volumeName v1.UniqueVolumeName, nodeName types.NodeName) {
	a.change(attachmentKey{nodeName, volumeName}, func(row *attachmentRow) {
		row.DetachRequestedSince, row.ForcedDetachAllowed = time.Time{}, false
	})
}

// AllowForcedDetach allows the detach of a volume even while the node uses it. The caller decides: the node is out of order
// and time has run out, or the node was fenced. CancelDetachRequest, attaching the volume again, and another node of that
// name end the permission.
func (a *ActualStateOfWorld) AllowForcedDetach(volumeName v1.UniqueVolumeName, nodeName types.NodeName) {
	a.change(attachmentKey{nodeName, volumeName}, func(row *attachmentRow) { row.ForcedDetachAllowed = true })
}

// change applies f to the row of an attachment, if there is one.
func (a *ActualStateOfWorld) change(key attachmentKey, f func(row *attachmentRow)) {
	a.mu.Lock()
	var calls hookCalls
	if old := a.table.find(key); old != nil {
		row := *old
		f(&row)
		calls = a.table.put(a.table.nodes[key.node], key, old, row)
	}
	a.mu.Unlock()
	a.callHooks(key, calls)
}
