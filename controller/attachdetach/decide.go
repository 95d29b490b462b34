package attachdetach

import (
	"time"

	"github.com/volumekit/volumekit/internal/cluster"
)

// ForceReason is why a volume is taken from a node although the node uses it, or may use it.
type ForceReason string

// The reasons of a forced detach. The text is stable.
const (
	// notForced: the node does not use the volume.
	notForced ForceReason = ""
	// ForcedByTimeout: the node says that it is not ready, and was so, and has not let go of the volume, for as long as it is
	// waited for.
	ForcedByTimeout ForceReason = "timeout"
	// ForcedByFence: the node has the taint v1.TaintNodeOutOfService.
	ForcedByFence ForceReason = "out-of-service"
)

// nodeHealth is what a node's object says of the node.
type nodeHealth uint8

const (
	missing   nodeHealth = iota // there is no object: the node may be as well as ever
	silent                      // it does not say whether it is ready
	notReady                    // it says that it is not ready
	ready                       // it says that it is ready
	fenced                      // it has a taint: no process on it can write any more
	unmanaged                   // its volumes are not this controller's
)

// attachmentView is all that the decision on one attachment depends on.
type attachmentView struct {
	// wanted says that a pod on the node wants the volume.
	wanted bool
	state  cluster.AttachmentState
	use    cluster.UseState
	node   nodeHealth
	// unwantedFor is for how long no pod has wanted the volume there, notReadyFor for how long the node has not been ready.
	unwantedFor, notReadyFor time.Duration
}

// step is what is to be done with an attachment.
type step uint8

const (
	stay   step = iota // nothing, until something changes
	keep               // it is as it should be
	attach             // attach it, or confirm that it is attached
	detach             // detach it
)

// decision is what is to be done with one attachment.
type decision struct {
	step step
	// force is why the use of the node does not count; of a detach alone.
	force ForceReason
	// after is when to look again, with nothing having changed; zero means never.
	after time.Duration
}

// decide says what is to be done. maxWait is [Options].MaxWaitForUnmount. It is a pure function.
func decide(v attachmentView, maxWait time.Duration) decision {
	if v.node == unmanaged {
		return decision{}
	}
	switch v.state {
	case cluster.Attaching, cluster.Detaching:
		return decision{} // The end of the operation makes the attachment dirty again.
	case cluster.Attached:
		if v.wanted {
			return decision{step: keep}
		}
		return release(v, maxWait)
	case cluster.AttachUncertain:
		if v.wanted {
			return decision{step: attach}
		}
		return release(v, maxWait)
	case cluster.NotAttached:
		if v.wanted {
			return decision{step: attach}
		}
	}
	return decision{}
}

// release says how an attachment ends that no pod wants.
func release(v attachmentView, maxWait time.Duration) decision {
	switch {
	case v.node == missing:
		return decision{} // Its last word may be older than what it does.
	case v.use == cluster.NotInUse:
		return decision{step: detach}
	case v.node == fenced:
		return decision{step: detach, force: ForcedByFence}
	case v.node != notReady || maxWait < 0:
		return decision{}
	}
	waited := min(v.unwantedFor, v.notReadyFor)
	if waited < maxWait {
		return decision{after: maxWait - waited}
	}
	return decision{step: detach, force: ForcedByTimeout}
}
