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

// event is what the state was told of an attachment.
type event uint8

const (
	succeeded event = iota // it is attached
	doubted                // it may be attached
	undone                 // it is not attached
	found                  // a restart found traces of it
	begun                  // an attempt to attach it begins
	ended                  // that attempt is over
	withdrawn              // the node must not begin to use it, for it is about to be detached
	restored               // it is not detached after all
)

// String returns the event in lower case.
func (e event) String() string {
	return [...]string{"succeeded", "doubted", "undone", "found", "begun", "ended", "withdrawn", "restored"}[e]
}

// condition is what must hold of an attachment for a move.
type condition uint8

const (
	anyhow       condition = iota
	mayHave                // no other node has it, if only one node may have it, and the node has room for it
	released               // the node does not use it, or may lose it all the same
	notAttaching           // no attempt is going on: never, in the state in which one is
	notDetaching           // it is not withdrawn: never, in the state in which it is
	isKnown                // it is, or may be, attached: never, in the state in which it is not
)

// listing is what a move does to the node's report.
type listing uint8

const (
	asBefore listing = iota
	listed           // the report lists the volume as attached
	unlisted         // the report does not, or no longer, list it
)

// move is the state to which an event leads, its condition, and what it does to the node's report.
type move struct {
	to    AttachmentState
	given condition
	tells listing
}

// moves is the table of legal moves of an attachment in a cluster. A node's report lists an attachment when it becomes
// certain, never while it is in doubt, and no longer once it is to be undone. What a restart finds never overwrites what is
// known. What the node's status lists already (asBefore) stays listed until it is doubted or withdrawn.
var moves = [5][8]move{
	NotAttached: {
		succeeded: {Attached, anyhow, listed}, doubted: {AttachUncertain, anyhow, unlisted},
		undone: {NotAttached, anyhow, unlisted}, found: {AttachUncertain, anyhow, asBefore},
		begun: {Attaching, mayHave, unlisted}, ended: {NotAttached, anyhow, unlisted},
		withdrawn: {NotAttached, isKnown, unlisted}, restored: {NotAttached, anyhow, unlisted},
	},
	Attaching: {
		succeeded: {Attached, anyhow, listed}, doubted: {AttachUncertain, anyhow, unlisted},
		undone: {Attaching, anyhow, unlisted}, found: {AttachUncertain, anyhow, asBefore},
		begun: {Attaching, notAttaching, unlisted}, ended: {NotAttached, anyhow, unlisted},
		withdrawn: {Attaching, notAttaching, unlisted}, restored: {Attaching, anyhow, unlisted},
	},
	AttachUncertain: {
		succeeded: {Attached, anyhow, listed}, doubted: {AttachUncertain, anyhow, unlisted},
		undone: {NotAttached, anyhow, unlisted}, found: {AttachUncertain, anyhow, asBefore},
		begun: {AttachUncertain, mayHave, asBefore}, ended: {AttachUncertain, anyhow, asBefore},
		withdrawn: {AttachUncertain, released, unlisted}, restored: {AttachUncertain, anyhow, asBefore},
	},
	Attached: {
		succeeded: {Attached, anyhow, listed}, doubted: {AttachUncertain, anyhow, unlisted},
		undone: {NotAttached, anyhow, unlisted}, found: {Attached, anyhow, asBefore},
		begun: {Attached, anyhow, asBefore}, ended: {Attached, anyhow, asBefore},
		withdrawn: {Detaching, released, unlisted}, restored: {Attached, anyhow, asBefore},
	},
	Detaching: {
		succeeded: {Attached, anyhow, listed}, doubted: {AttachUncertain, anyhow, unlisted},
		undone: {NotAttached, anyhow, unlisted}, found: {Detaching, anyhow, asBefore},
		begun: {Detaching, notDetaching, unlisted}, ended: {Detaching, anyhow, asBefore},
		withdrawn: {Detaching, anyhow, unlisted}, restored: {Attached, anyhow, listed},
	},
}

// meets returns nil when what a move needs holds. old is the row as it is, node the record of its node; both may be nil.
func (a *ActualStateOfWorld) meets(c condition, n *attachmentNews, node *knownNode, old *attachmentRow) error {
	switch c {
	case anyhow:
		return nil
	case mayHave:
		return a.mayHave(n, node, old)
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

// mayHave refuses a volume that others have and one node alone may have, and one for which the node has no room.
func (a *ActualStateOfWorld) mayHave(n *attachmentNews, node *knownNode, old *attachmentRow) error {
	if !volume.IsMultiAttachAllowed(n.spec) {
		if others := a.others(n.key.volume, n.key.node); len(others) > 0 {
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

// released refuses to take from a node what it uses.
func (r *attachmentRow) released() error {
	if r.InUse == NotInUse || r.ForcedDetachAllowed {
		return nil
	}
	return &NodeUsesVolumeError{VolumeName: r.VolumeName, NodeName: r.NodeName, InUse: r.InUse}
}

// refuse says which move was refused.
func refuse(key attachmentKey, state AttachmentState, e event, err error) error {
	return fmt.Errorf("volume %q on node %q is %v and this cannot be %v: %w", key.volume, key.node, state, e, err)
}
