package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/cluster"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// ErrNodeMissing says that a volume that no pod wants stays attached, because the node has no object: see [NodeMissingError].
var ErrNodeMissing = errors.New("the node has no Node object")

// NodeMissingError says which volume stays attached to which node without an object, and what to do. It matches
// [ErrNodeMissing] and volume.ErrInUse.
type NodeMissingError struct {
	// VolumeName and NodeName say which volume of which node.
	VolumeName v1.UniqueVolumeName
	NodeName   types.NodeName
}

// Error names the volume and the node.
func (e *NodeMissingError) Error() string {
	return fmt.Sprintf("volume %q stays attached to node %q: %v, and the machine may go on writing; when nothing on it can write any more, "+
		"make a Node object of this name with the taint %s", e.VolumeName, e.NodeName, ErrNodeMissing, v1.TaintNodeOutOfService)
}

// Unwrap returns the sentinels.
func (e *NodeMissingError) Unwrap() []error { return []error{ErrNodeMissing, volume.ErrInUse} }

// desiredChanged is called by the desired state after a change.
func (c *Controller) desiredChanged(name v1.UniqueVolumeName, node types.NodeName) {
	c.dirty.Add(attachment{name, node})
}

// actualChanged is called by the actual state after a change. Attachments may wait for the volume, or for the room, that has become free.
func (c *Controller) actualChanged(name v1.UniqueVolumeName, node types.NodeName) {
	c.dirty.Add(attachment{name, node})
	if c.actual.AttachState(name, node) == cluster.NotAttached {
		c.volumeFreed(name)
		c.failures.roomOn(node)
	}
}

// volumeFreed has the nodes looked at that have or want a volume.
func (c *Controller) volumeFreed(name v1.UniqueVolumeName) {
	for want := range c.desired.NodesOfVolume(name) {
		c.dirty.Add(attachment{name, want.NodeName})
	}
	for at := range c.actual.AttachmentsOfVolume(name) {
		c.dirty.Add(attachment{name, at.NodeName})
	}
}

// keyFreed is called by the executor when an operation has ended and all of its calls have returned. Other operations may wait for its
// key, which is the whole volume's when one node alone may have it.
func (c *Controller) keyFreed(o operationexecutor.OperationInfo) {
	if o.VolumeName == "" {
		return
	}
	c.dirty.Add(attachment{o.VolumeName, o.NodeName})
	c.volumeFreed(o.VolumeName)
}

// endAttempt ends the attempt of an operation that has ended, or did not begin. Only the planner's goroutine begins and ends attempts,
// so that none ends instead of the next one.
func (c *Controller) endAttempt(a attachment) {
	if attempt := c.attempts[a]; attempt != nil {
		delete(c.attempts, a)
		attempt.End()
	}
}

// planAll decides dirty attachments until ctx ends. It is the only goroutine that begins operations: an attachment without a pending
// operation has none until planAll begins one.
func (c *Controller) planAll(ctx context.Context) {
	for {
		a, ok := c.dirty.Get(ctx)
		if !ok {
			return
		}
		c.reconcile(ctx, a)
	}
}

// reconcile decides one attachment and begins what is to be done.
func (c *Controller) reconcile(ctx context.Context, a attachment) {
	// What is pending is read before what is known: an operation that ends in between makes the attachment dirty again.
	if c.executor.IsOperationPending(operationexecutor.Key{Volume: a.volume, Node: a.node}) {
		return
	}
	c.endAttempt(a)
	asked := c.confirmer.isBeingChecked(a) // Read before what is known, too: once it is no more, what is known has the answer in it.
	view, want, have := c.view(a)
	d := decide(view, c.options.MaxWaitForUnmount)
	switch {
	case asked && (d.step == attach || d.step == detach):
		// It waits for the answer. If that says that the volume is attached, the node may use it until its object says otherwise: a
		// detach that has begun would fail.
	case d.step == attach:
		c.attach(ctx, a, want)
	case d.step == detach:
		c.detach(ctx, a, have, d.force)
	case d.step == keep:
		c.actual.CancelDetachRequest(a.volume, a.node)
		c.failures.forget(a)
	case d.step == stay:
		c.recordWait(a, view, have)
	}
	if d.after > 0 {
		c.dirty.AddAt(a, time.Now().Add(d.after))
	}
}

// view returns the input of the decision.
func (c *Controller) view(a attachment) (attachmentView, operationexecutor.VolumeToAttach, cluster.Attachment) {
	want, wanted := c.desired.VolumeToAttach(a.volume, a.node)
	have, _ := c.actual.Attachment(a.volume, a.node)
	node, _ := c.objects.nodes.Get(types.NamespacedName{Name: string(a.node)})
	view := attachmentView{wanted: wanted, state: have.AttachState, node: c.health.healthFrom(node), notReadyFor: c.health.notReadyFor(node)}
	if !wanted && view.state != cluster.NotAttached {
		if have.InUse == cluster.AssumedInUse {
			c.readUse(a.node)
			have, _ = c.actual.Attachment(a.volume, a.node)
		}
		if since := c.actual.RequestDetach(a.volume, a.node); !since.IsZero() {
			view.unwantedFor = time.Since(since)
		}
	}
	view.use = have.InUse
	return view, want, have
}

// readUse reads from a node's object which volumes the node uses. It may be older than the attachment; the executor reads the
// object itself before it detaches.
func (c *Controller) readUse(name types.NodeName) {
	node, there := c.objects.nodes.Get(types.NamespacedName{Name: string(name)})
	if !there {
		return
	}
	// The change of a node of another UID is handled on its own.
	_ = c.recordUse(node)
}

// recordWait stores why nothing is done for an attachment.
func (c *Controller) recordWait(a attachment, view attachmentView, have cluster.Attachment) {
	if view.wanted || view.state != cluster.Attached && view.state != cluster.AttachUncertain {
		if view.state == cluster.NotAttached {
			c.failures.forget(a)
			c.executor.ResetBackoff(operationexecutor.Key{Volume: a.volume, Node: a.node})
		}
		return
	}
	var err error = &cluster.NodeUsesVolumeError{VolumeName: a.volume, NodeName: a.node, InUse: view.use}
	if view.node == missing {
		err = &NodeMissingError{VolumeName: a.volume, NodeName: a.node}
		c.events.nodeMissing(a, have, c.failures.of(a).err, err)
	}
	c.failures.record(a, failure{err: err})
}

// attach begins to attach a volume, or keeps why that cannot begin.
func (c *Controller) attach(ctx context.Context, a attachment, want operationexecutor.VolumeToAttach) {
	// An attempt that does not begin makes the attachment dirty when it ends: one that must wait would be begun again and again until
	// then.
	if why := c.failures.of(a); why.of == attach && time.Now().Before(why.until) {
		c.dirty.AddAt(a, why.until)
		return
	}
	if err := c.foreign.attachedElsewhere(a, want.VolumeSpec); err != nil {
		c.failures.record(a, failure{err: err})
		c.events.foreign(a, want, err)
		return
	}
	attempt, err := c.beginAttempt(a, want)
	if err == nil {
		_, err = c.executor.AttachVolume(ctx, want, attempt)
	}
	if err != nil {
		c.endAttempt(a)
	}
	var late *volume.BackoffError
	var elsewhere *operationexecutor.MultiAttachError
	switch {
	case errors.As(err, &late):
		c.recordNotBegun(a, attach, err) // It waits for its time, whatever it failed with.
	case errors.As(err, &elsewhere):
		c.failures.record(a, failure{err: err})
		c.events.multiAttach(a, want, elsewhere)
	case errors.Is(err, cluster.ErrAttachLimit):
		c.waitForRoom(a, want, err)
	default:
		c.recordNotBegun(a, attach, err)
	}
}

// beginAttempt reserves room for a volume on a node, and keeps the attempt until its operation has ended.
func (c *Controller) beginAttempt(a attachment, want operationexecutor.VolumeToAttach) (*cluster.AttachAttempt, error) {
	request := cluster.AttachRequest{VolumeName: a.volume, VolumeSpec: want.VolumeSpec, NodeName: a.node}
	pluginName, _, err := volume.SplitUniqueName(a.volume)
	if err != nil {
		return nil, err
	}
	if limit, limited := c.objects.limitOf(a.node, pluginName); limited {
		if limit <= 0 {
			return nil, &cluster.AttachLimitError{NodeName: a.node, PluginName: pluginName, Count: c.actual.AttachCount(a.node, pluginName)}
		}
		request.AttachLimit = limit
	}
	attempt, err := c.actual.BeginAttach(request)
	if err != nil {
		return nil, err
	}
	c.attempts[a] = attempt
	return attempt, nil
}

// detach begins to detach a volume. A forced detach is counted, logged and an event of the node.
func (c *Controller) detach(ctx context.Context, a attachment, have cluster.Attachment, force ForceReason) {
	if err := c.foreign.attachedHere(a); err != nil {
		c.failures.record(a, failure{err: err})
		return
	}
	options := operationexecutor.DetachOptions{VerifySafeToDetach: force == notForced}
	if force != notForced {
		c.actual.AllowForcedDetach(a.volume, a.node)
		options.Confirm = func(ctx context.Context) error { return c.confirmForce(ctx, a, have, force) }
	}
	_, err := c.executor.DetachVolume(ctx, have.AttachedVolume, options, c.actual)
	c.recordNotBegun(a, detach, err)
}

// confirmForce refuses to take a volume by force from a node that is well, or has been meanwhile, or is fenced off no more. It reads the
// node's object: the one that was last seen may be old. An object that is gone proves nothing. A forced detach is reported here, before
// it is done.
func (c *Controller) confirmForce(ctx context.Context, a attachment, have cluster.Attachment, force ForceReason) error {
	node, err := store.Get[*v1.Node](ctx, c.store, "", string(a.node))
	if err != nil {
		return volume.Transient(fmt.Errorf("whether node %q may be forced is not known: %w", a.node, err))
	}
	late := force == ForcedByTimeout && c.health.notReadyFor(node) >= c.options.MaxWaitForUnmount
	if c.health.healthFrom(node) != fenced && !late {
		return volume.Transient(&cluster.NodeUsesVolumeError{VolumeName: a.volume, NodeName: a.node, InUse: have.InUse})
	}
	c.events.forcedDetach(a, have, force)
	return nil
}

// recordNotBegun stores why an operation did not begin.
func (c *Controller) recordNotBegun(a attachment, of step, err error) {
	var late *volume.BackoffError
	var pending *volume.PendingError
	switch {
	case err == nil:
	case errors.As(err, &late):
		c.failures.record(a, failure{of: of, err: late.Err, attempts: late.Attempts, until: late.Until})
	case errors.As(err, &pending):
		// A verification of many volumes holds each of them and does not report its end.
		c.failures.record(a, failure{of: of, err: err, attempts: c.failures.of(a).attempts, until: time.Now().Add(c.options.delay(1))})
	case errors.Is(err, cluster.ErrAttaching), errors.Is(err, cluster.ErrDetaching):
		// The end of what is going on makes it dirty again.
	case errors.Is(err, operationexecutor.ErrShutDown), errors.Is(err, cluster.ErrNodeUnknown):
		c.failures.record(a, failure{err: err})
	default:
		attempts := c.failures.of(a).attempts + 1
		c.failures.record(a, failure{of: of, err: err, attempts: attempts, until: time.Now().Add(c.options.delay(attempts))})
	}
}

// waitForRoom makes a volume wait until another one is detached from the node. Its pods get one event.
func (c *Controller) waitForRoom(a attachment, want operationexecutor.VolumeToAttach, err error) {
	known := errors.Is(c.failures.of(a).err, cluster.ErrAttachLimit)
	c.failures.waitForRoom(a, err)
	if !known {
		c.events.pods(want, fmt.Sprintf("volume %q is not attached: %v", want.VolumeSpec.Name(), err))
	}
}
