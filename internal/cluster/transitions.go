package cluster

import (
	"fmt"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// AttachmentState is what is known of the attachment of a volume to a node.
type AttachmentState uint8

// The states of an attachment.
const (
	// NotAttached says that nothing is known to be there.
	NotAttached AttachmentState = iota
	// AttachUncertain says that it must be attached again before use and detached before it is forgotten.
	AttachUncertain
	// Attached says that it is attached for certain.
	Attached
	// Attaching says that an attempt has begun and its result is unknown.
	Attaching
	// Detaching says that the volume is attached, but withdrawn from the node's report.
	Detaching
)

// String returns the state in lower case.
func (s AttachmentState) String() string {
	return [...]string{"not attached", "attachment uncertain", "attached", "being attached", "being detached"}[s]
}

// event is a change of an attachment, as a caller of the state reports it.
type event uint8

const (
	succeeded       event = iota // it is attached
	markedUncertain              // it may be attached
	markedDetached               // it is not attached
	found                        // a restart found traces of it
	begun                        // an attempt to attach it begins
	ended                        // that attempt is over
	withdrawn                    // the node must not begin to use it, for it is about to be detached
	restored                     // it is not detached after all
)

// String returns the event in lower case.
func (e event) String() string {
	return [...]string{"succeeded", "marked as uncertain", "marked as detached", "found", "begun", "ended", "withdrawn", "restored"}[e]
}

// condition is what must hold of an attachment for a transition.
type condition uint8

const (
	always       condition = iota
	mayAttach              // no other node has it, if only one node may have it, and the node has room for it
	released               // the node does not use it, or may lose it all the same
	notAttaching           // no attempt is going on: never, in the state in which one is
	notDetaching           // it is not withdrawn: never, in the state in which it is
	isKnown                // it is, or may be, attached: never, in the state in which it is not
)

// reporting is the effect of a transition on the node's report.
type reporting uint8

const (
	unchanged reporting = iota
	listed              // the report lists the volume as attached
	unlisted            // the report does not, or no longer, list it
)

// transition is the state to which an event leads, its condition, and its effect on the node's report.
type transition struct {
	to        AttachmentState
	given     condition
	reporting reporting
}

// transitions is the table of legal transitions of an attachment in a cluster. A node's report lists an attachment when it becomes
// certain, never while it is uncertain, and no longer once it is to be detached. What a restart finds never overwrites what is
// known. What the node's status lists already (unchanged) stays listed until it becomes uncertain or is withdrawn.
var transitions = [5][8]transition{
	NotAttached: {
		succeeded: {Attached, always, listed}, markedUncertain: {AttachUncertain, always, unlisted},
		markedDetached: {NotAttached, always, unlisted}, found: {AttachUncertain, always, unchanged},
		begun: {Attaching, mayAttach, unlisted}, ended: {NotAttached, always, unlisted},
		withdrawn: {NotAttached, isKnown, unlisted}, restored: {NotAttached, always, unlisted},
	},
	Attaching: {
		succeeded: {Attached, always, listed}, markedUncertain: {AttachUncertain, always, unlisted},
		markedDetached: {Attaching, always, unlisted}, found: {AttachUncertain, always, unchanged},
		begun: {Attaching, notAttaching, unlisted}, ended: {NotAttached, always, unlisted},
		withdrawn: {Attaching, notAttaching, unlisted}, restored: {Attaching, always, unlisted},
	},
	AttachUncertain: {
		succeeded: {Attached, always, listed}, markedUncertain: {AttachUncertain, always, unlisted},
		markedDetached: {NotAttached, always, unlisted}, found: {AttachUncertain, always, unchanged},
		begun: {AttachUncertain, mayAttach, unchanged}, ended: {AttachUncertain, always, unchanged},
		withdrawn: {AttachUncertain, released, unlisted}, restored: {AttachUncertain, always, unchanged},
	},
	Attached: {
		succeeded: {Attached, always, listed}, markedUncertain: {AttachUncertain, always, unlisted},
		markedDetached: {NotAttached, always, unlisted}, found: {Attached, always, unchanged},
		begun: {Attached, always, unchanged}, ended: {Attached, always, unchanged},
		withdrawn: {Detaching, released, unlisted}, restored: {Attached, always, unchanged},
	},
	Detaching: {
		succeeded: {Attached, always, listed}, markedUncertain: {AttachUncertain, always, unlisted},
		markedDetached: {NotAttached, always, unlisted}, found: {Detaching, always, unchanged},
		begun: {Detaching, notDetaching, unlisted}, ended: {Detaching, always, unchanged},
		withdrawn: {Detaching, always, unlisted}, restored: {Attached, always, listed},
	},
}

// checkCondition returns nil if the condition of a transition holds. old is the present row, node the row of its node; both may be nil.
func (t *table) checkCondition(c condition, n *attachmentChange, node *nodeRow, old *attachmentRow) error {
	switch c {
	case always:
		return nil
	case mayAttach:
		return t.checkMayAttach(n, node, old)
	case released:
		return old.released()
	case notAttaching:
		return ErrAttaching
	case notDetaching:
		return ErrDetaching
	case isKnown:
		return ErrNotAttached
	}
	return nil
}

// checkMayAttach refuses a volume for one node that another node has, and a volume that exceeds the node's attach limit.
func (t *table) checkMayAttach(n *attachmentChange, node *nodeRow, old *attachmentRow) error {
	if !volume.IsMultiAttachAllowed(n.spec) {
		if others := t.others(n.key.volume, n.key.node); len(others) > 0 {
			return &operationexecutor.MultiAttachError{Nodes: others}
		}
	}
	if old != nil || n.limit <= 0 {
		return nil // What is there counts already.
	}
	if count := node.perPlugin[n.pluginName]; count >= n.limit {
		return &AttachLimitError{NodeName: n.key.node, PluginName: n.pluginName, Limit: n.limit, Count: count}
	}
	return nil
}

// released refuses to detach a volume that the node uses.
func (r *attachmentRow) released() error {
	if r.InUse == NotInUse || r.ForcedDetachAllowed {
		return nil
	}
	return &NodeUsesVolumeError{VolumeName: r.VolumeName, NodeName: r.NodeName, InUse: r.InUse}
}

// refuse returns the error of a transition that the table refuses.
func refuse(key attachmentKey, state AttachmentState, e event, err error) error {
	return fmt.Errorf("volume %q on node %q is %v and this cannot be %v: %w", key.volume, key.node, state, e, err)
}
