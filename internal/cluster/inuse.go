package cluster

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// UseState is what is known of a node's use of a volume that is attached to it.
type UseState uint8

// The states of use. A volume that a node has just got is assumed to be in use until the node says otherwise: read its
// status anew when a detach waits for no more than that.
const (
	AssumedInUse UseState = iota
	ReportedInUse
	NotInUse
)

// String returns the state in lower case.
func (s UseState) String() string {
	return [...]string{"assumed to be in use", "in use", "not in use"}[s]
}

// SetVolumesInUse says which volumes a node says that it uses; all others of that node are not in use. What was attached while
// the node had another UID stays assumed to be in use until the node has listed any volume under its own. The status must be
// one that was read or written after all that is attached was marked so; an older one is noticed when the executor asks the
// node before it detaches. It costs as much as the node has volumes. The error matches [ErrNodeUnknown] when the node is
// not there, or is not the one with that UID.
func (a *ActualStateOfWorld) SetVolumesInUse(name types.NodeName, uid types.UID, inUse []v1.UniqueVolumeName) error {
	a.mu.Lock()
	node := a.nodes[name]
	if err := node.check(name, uid); err != nil {
		a.mu.Unlock()
		return err
	}
	changed := a.setInUse(node, inUse)
	a.mu.Unlock()
	a.options.changed(changed...)
	return nil
}

// TrustVolumesInUse says that the list of volumes in use of a node's object was written by the node itself, so that also an empty
// one counts for what was attached while the node had another UID. It is to be called before
// [ActualStateOfWorld.SetVolumesInUse]. It does nothing for a node that is not there or has another UID.
func (a *ActualStateOfWorld) TrustVolumesInUse(name types.NodeName, uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if node := a.nodes[name]; node.check(name, uid) == nil {
		node.listedUse = true
	}
}

// setInUse changes the rows of the volumes of which the node says something else than before, and returns them.
func (a *ActualStateOfWorld) setInUse(node *knownNode, inUse []v1.UniqueVolumeName) (changed []attachmentKey) {
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

// RequestDetach says that a volume is to be detached from a node, and returns since when: a request that was made before
// and not taken back stays as old as it is, whatever became of attempts. It returns zero when the volume is not, and may
// not be, attached. Attaching it again takes the request back.
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

// CancelDetachRequest takes back that a volume is to be detached, and that it may be by force.
func (a *ActualStateOfWorld) CancelDetachRequest(volumeName v1.UniqueVolumeName, nodeName types.NodeName) {
	a.change(attachmentKey{nodeName, volumeName}, func(row *attachmentRow) {
		row.DetachRequestedSince, row.ForcedDetachAllowed = time.Time{}, false
	})
}

// AllowForcedDetach says that a volume may be detached also while the node uses it, by the caller's policy: the node is out
// of order and time has run out, or it was fenced. That is taken back by CancelDetachRequest, by attaching the volume
// again, and by another node of that name.
func (a *ActualStateOfWorld) AllowForcedDetach(volumeName v1.UniqueVolumeName, nodeName types.NodeName) {
	a.change(attachmentKey{nodeName, volumeName}, func(row *attachmentRow) { row.ForcedDetachAllowed = true })
}

// change replaces the row of an attachment, if there is one, by what f makes of it.
func (a *ActualStateOfWorld) change(key attachmentKey, f func(row *attachmentRow)) {
	a.mu.Lock()
	var told toldOf
	if old := a.find(key); old != nil {
		row := *old
		f(&row)
		told = a.put(a.nodes[key.node], key, old, row)
	}
	a.mu.Unlock()
	a.tell(key, told)
}
