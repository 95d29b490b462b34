package inspect

import (
	"cmp"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/volumekit/volumekit/controller/attachdetach"
	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// ClusterAnswer is the answer of /v1/cluster. The names in JSON are stable.
type ClusterAnswer struct {
	// Version is [Version].
	Version int `json:"version"`
	// Leading says that this process has the controllers; without them it knows only the leases.
	Leading bool `json:"leading"`
	// Counts are the lengths of the lists before any was cut.
	Counts ClusterCounts `json:"counts"`
	// Claims are the claims that wait for a volume, the longest-waiting first; at most 1000.
	Claims []Claim `json:"claims"`
	// Offset is the number of matching attachments before the first in Attachments.
	Offset int `json:"offset"`
	// Attachments are those that match the query; first those that need attention.
	Attachments []Attachment `json:"attachments"`
	// HungCalls are the attach controller's calls of plugins that have not returned, the oldest first; at most 1000.
	HungCalls []HungCall `json:"hungCalls"`
	// Leases name the leading process of each controller, by name; at most 1000.
	Leases []Lease `json:"leases"`
}

// ClusterCounts are the lengths of the lists of a [ClusterAnswer] before any was cut.
type ClusterCounts struct {
	// Claims is the number of waiting claims.
	Claims int `json:"claims"`
	// Attachments is the number of attachments, Matching the number of those that match the query.
	Attachments int `json:"attachments"`
	Matching    int `json:"matching"`
	// Attention is the number of matching attachments that fail or are detached by force; Forced is the number of those
	// detached by force.
	Attention int `json:"attention"`
	Forced    int `json:"forced"`
	// HungCalls and Leases are the lengths of those lists.
	HungCalls int `json:"hungCalls"`
	Leases    int `json:"leases"`
}

// Claim is a claim that waits for a volume.
type Claim struct {
	// Namespace, Name and UID are those of its object.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	// Reason is the reason of its event. Message says what to change.
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Error is the failure to create its volume; empty if the claim only waits.
	Error string `json:"error,omitempty"`
	// Since is when the claim first had this reason.
	Since time.Time `json:"since,omitzero"`
}

// Attachment is one volume on one node, as [attachdetach.AttachmentStatus] has it.
type Attachment struct {
	// Volume is the unique name of the volume, Node the name of the node, Plugin the name of the plugin.
	Volume string `json:"volume"`
	Node   string `json:"node"`
	Plugin string `json:"plugin"`
	// Phase is its phase.
	Phase string `json:"phase"`
	// Wanted says that pods on the node need it.
	Wanted bool `json:"wanted"`
	// Device is the path of its device on the node; empty while it is not known.
	Device string `json:"device,omitempty"`
	// DetachRequestedSince is when the last pod on the node released it; absent while a pod needs it.
	DetachRequestedSince time.Time `json:"detachRequestedSince,omitzero"`
	// Error is the last real cause of the failure of its operations.
	Error string `json:"error,omitempty"`
	// Attempts is the number of failures in a row. NextTry is the time of the next attempt; absent while it waits for a
	// change.
	Attempts int       `json:"attempts,omitempty"`
	NextTry  time.Time `json:"nextTry,omitzero"`
}

// Lease names a leading process.
type Lease struct {
	// Namespace and Name are those of its object.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Holder is the leading process; empty if there is none.
	Holder string `json:"holder,omitempty"`
	// Renewed is the time of the last renewal, Seconds the duration of the lease.
	Renewed time.Time `json:"renewed,omitzero"`
	Seconds int32     `json:"seconds,omitempty"`
	// Transitions is the number of changes of the leader.
	Transitions int32 `json:"transitions"`
}

// clusterAnswer returns the answer to q, from copies of the controllers' state.
func clusterAnswer(from ClusterSources, q clusterQuery) ClusterAnswer {
	a := ClusterAnswer{Version: Version, Offset: q.offset, Leading: from.Attachments != nil || from.Claims != nil}
	var pending []persistentvolume.PendingClaim
	if from.Claims != nil {
		pending = from.Claims.Pending()
		slices.SortStableFunc(pending, func(a, b persistentvolume.PendingClaim) int { return a.Since.Compare(b.Since) })
	}
	var status []attachdetach.AttachmentStatus
	var hung []operationexecutor.HungCall
	if from.Attachments != nil {
		status, hung = from.Attachments.Status(), from.Attachments.Hung()
	}
	leases := slices.Clone(from.Leases)
	slices.SortFunc(leases, func(a, b *coordinationv1.Lease) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	a.Counts = ClusterCounts{Claims: len(pending), Attachments: len(status), HungCalls: len(hung), Leases: len(leases)}

	matching := slices.DeleteFunc(each(status, attachmentOf), func(one Attachment) bool { return !q.matches(one) })
	a.Counts.Matching = len(matching)
	for _, one := range matching {
		if one.needsAttention() {
			a.Counts.Attention++
		}
		if one.isForced() {
			a.Counts.Forced++
		}
	}
	slices.SortStableFunc(matching, func(a, b Attachment) int { return cmp.Compare(a.rank(), b.rank()) })
	matching = matching[min(q.offset, len(matching)):]
	a.Attachments = matching[:min(q.limit, len(matching))]
	a.Claims, a.HungCalls, a.Leases = each(first(pending), claimOf), each(first(hung), hungOf), each(first(leases), leaseOf)
	return a
}

// matches reports whether the attachment matches the query.
func (q clusterQuery) matches(a Attachment) bool {
	return (q.node == "" || q.node == a.Node) && (q.plugin == "" || q.plugin == a.Plugin) && (q.phase == "" || q.phase == a.Phase)
}

func (a Attachment) isForced() bool { return a.Phase == string(attachdetach.PhaseFenced) }

func (a Attachment) needsAttention() bool { return a.Error != "" || a.isForced() }

// rank returns the sort key of an attachment: the smallest comes first.
func (a Attachment) rank() urgency {
	switch {
	case a.needsAttention():
		return failing
	case a.Phase == string(attachdetach.PhaseAttached) || a.Phase == string(attachdetach.PhaseInUse):
		return settled
	}
	return moving
}

func attachmentOf(s attachdetach.AttachmentStatus) Attachment {
	plugin, _, _ := volume.SplitUniqueName(s.Volume) // An invalid unique name has no plugin.
	return Attachment{
		Volume: text(string(s.Volume)), Node: text(string(s.Node)), Plugin: text(plugin), Phase: text(string(s.Phase)), Wanted: s.Wanted,
		Device: text(s.DevicePath), DetachRequestedSince: s.DetachRequestedSince, Error: textOf(s.Err), Attempts: s.Attempts, NextTry: s.NextTry,
	}
}

func claimOf(p persistentvolume.PendingClaim) Claim {
	return Claim{
		Namespace: text(p.Claim.Namespace), Name: text(p.Claim.Name), UID: text(string(p.UID)),
		Reason: text(p.Reason), Message: text(p.Message), Error: textOf(p.Err), Since: p.Since,
	}
}

func leaseOf(l *coordinationv1.Lease) Lease {
	lease := Lease{Namespace: text(l.Namespace), Name: text(l.Name)}
	if l.Spec.HolderIdentity != nil {
		lease.Holder = text(*l.Spec.HolderIdentity)
	}
	if l.Spec.RenewTime != nil {
		lease.Renewed = l.Spec.RenewTime.Time
	}
	if l.Spec.LeaseDurationSeconds != nil {
		lease.Seconds = *l.Spec.LeaseDurationSeconds
	}
	if l.Spec.LeaseTransitions != nil {
		lease.Transitions = *l.Spec.LeaseTransitions
	}
	return lease
}
