package attachdetach

import (
	"cmp"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/cluster"
	"github.com/volumekit/volumekit/operationexecutor"
)

// AttachmentPhase is the phase of an attachment, for people and programs. The text is stable.
type AttachmentPhase string

// The phases of an attachment, in the order of its life.
const (
	// PhaseRequested: pods want it, and nothing has begun.
	PhaseRequested AttachmentPhase = "requested"
	// PhaseAttaching: it is being attached.
	PhaseAttaching AttachmentPhase = "attaching"
	// PhaseAttached: it is attached, and the node's status does not list it as in use.
	PhaseAttached AttachmentPhase = "attached"
	// PhaseInUse: it is attached, and the node's status lists it as in use.
	PhaseInUse AttachmentPhase = "in use"
	// PhaseDetaching: it is being detached, or waits until the node no longer uses it.
	PhaseDetaching AttachmentPhase = "detaching"
	// PhaseFenced: the node is fenced off, and the volume is detached by force.
	PhaseFenced AttachmentPhase = "fenced"
	// PhaseUncertain: it may be attached.
	PhaseUncertain AttachmentPhase = "uncertain"
)

// AttachmentStatus is the status of one volume on one node.
type AttachmentStatus struct {
	// Volume is the unique name, Node the node.
	Volume v1.UniqueVolumeName
	Node   types.NodeName
	// Phase is the phase of the attachment.
	Phase AttachmentPhase
	// Wanted says that pods on the node want it.
	Wanted bool
	// DevicePath is the path of its device on the node; empty while it is not known.
	DevicePath string
	// DetachRequestedSince is when the last pod there stopped to want it; zero if a pod wants it.
	DetachRequestedSince time.Time
	// Err is the last real cause why it is not in the wanted state; nil if there is none.
	Err error
	// Attempts is the number of failures in a row. NextTry is when the next attempt begins; zero if it waits for a change.
	Attempts int
	NextTry  time.Time
}

// Status returns the status of every attachment that is wanted or known, sorted by node and volume. It does no I/O, does not wait, and
// calls no plugin.
func (c *Controller) Status() []AttachmentStatus {
	rows := map[attachment]AttachmentStatus{}
	for want := range c.desired.AllVolumesToAttach() {
		a := attachment{want.VolumeName, want.NodeName}
		rows[a] = AttachmentStatus{Volume: a.volume, Node: a.node, Wanted: true, Phase: PhaseRequested}
	}
	for have := range c.actual.AllAttachments() {
		a := attachment{have.VolumeName, have.NodeName}
		row := AttachmentStatus{
			Volume: a.volume, Node: a.node, Wanted: rows[a].Wanted,
			DevicePath: have.DevicePath, DetachRequestedSince: have.DetachRequestedSince,
		}
		row.Phase = c.phaseOf(have, row.Wanted)
		rows[a] = row
	}
	status := slices.AppendSeq(make([]AttachmentStatus, 0, len(rows)), maps.Values(rows))
	for i := range status {
		why := c.failures.of(attachment{status[i].Volume, status[i].Node})
		status[i].Err, status[i].Attempts, status[i].NextTry = why.err, why.attempts, why.until
	}
	slices.SortFunc(status, func(a, b AttachmentStatus) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Volume, b.Volume))
	})
	return status
}

func (c *Controller) phaseOf(have *cluster.Attachment, wanted bool) AttachmentPhase {
	switch {
	case have.AttachState == cluster.Attaching:
		return PhaseAttaching
	case !wanted && c.health.of(have.NodeName) == fenced:
		return PhaseFenced
	case have.AttachState == cluster.AttachUncertain:
		return PhaseUncertain
	case have.AttachState == cluster.Detaching || !wanted:
		return PhaseDetaching
	case have.InUse == cluster.ReportedInUse:
		return PhaseInUse
	}
	return PhaseAttached
}

// ForcedDetaches returns how many volumes were detached by force since New, by reason.
func (c *Controller) ForcedDetaches() map[ForceReason]uint64 { return c.events.forcedDetaches() }

// Hung returns the calls of plugins that were abandoned and still run, the oldest first.
func (c *Controller) Hung() []operationexecutor.HungCall { return c.executor.Hung() }

// confirmed returns the volumes that are certainly attached, by node. Plugins can verify these.
func (c *Controller) confirmed() map[types.NodeName][]operationexecutor.AttachedVolume {
	byNode := map[types.NodeName][]operationexecutor.AttachedVolume{}
	for have := range c.actual.AllAttachments() {
		if have.AttachState == cluster.Attached {
			byNode[have.NodeName] = append(byNode[have.NodeName], have.AttachedVolume)
		}
	}
	return byNode
}
