package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// The reasons of events of this package, all warnings.
const (
	// ReasonForcedDetach is that of a forced detach, on the node.
	ReasonForcedDetach = "ForcedDetachVolume"
	// ReasonNodeMissing is that of a volume that stays attached to a node without an object, on the volume.
	ReasonNodeMissing = "NodeMissing"
)

// ErrNodeMissing says that a volume that nobody wants stays attached, since the node has no object: see [NodeMissingError].
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
		"make a Node object of this name with the taint %s", e.VolumeName, e.NodeName, ErrNodeMissing, TaintOutOfService)
}

// Unwrap returns the sentinels.
func (e *NodeMissingError) Unwrap() []error { return []error{ErrNodeMissing, volume.ErrInUse} }

// trouble is why an attachment is not what it should be.
type trouble struct {
	// of is what could not be done.
	of       step
	err      error
	attempts int
	until    time.Time // zero: it does not wait for a time
}

// wish is told by the desired state of a change.
func (c *Controller) wish(name v1.UniqueVolumeName, node types.NodeName) {
	c.dirty.Add(attachment{name, node})
}

// moved is told by the actual state of a change. What has become free may be waited for, by the volume and by the room.
func (c *Controller) moved(name v1.UniqueVolumeName, node types.NodeName) {
	c.dirty.Add(attachment{name, node})
	if c.actual.AttachState(name, node) == cache.NotAttached {
		c.volumeFreed(name)
		c.roomOn(node)
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

// roomOn tries again what waits for room on a node.
func (c *Controller) roomOn(node types.NodeName) {
	c.mu.Lock()
	waiting := c.crowded[node]
	delete(c.crowded, node)
	c.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(waiting)) {
		c.dirty.Add(attachment{name, node})
	}
}

// keyFreed is told by the executor when an operation has ended and all of its calls have returned. Others may wait for its
// key, which is the whole volume's when one node alone may have it.
func (c *Controller) keyFreed(o operationexecutor.OperationInfo) {
	if o.VolumeName == "" {
		return
	}
	c.dirty.Add(attachment{o.VolumeName, o.NodeName})
	c.volumeFreed(o.VolumeName)
}

// endAttempt gives up the place of an attempt whose operation has ended, or did not begin. Only the planner's goroutine begins
// and ends attempts, so that none ends in place of the next one.
func (c *Controller) endAttempt(a attachment) {
	if attempt := c.attempts[a]; attempt != nil {
		delete(c.attempts, a)
		attempt.End()
	}
}

// planAll decides dirty attachments until ctx ends. It is the one goroutine that begins operations: what it finds not pending
// stays so until it begins one itself.
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
	asked := c.isBeingConfirmed(a) // Read before what is known, too: once it is no more, what is known has the answer in it.
	view, want, have := c.look(a)
	d := decide(view, c.options.MaxWaitForUnmount)
	switch d.step {
	case attach:
		if !asked {
			c.attach(ctx, a, want)
		}
	case detach:
		c.detach(ctx, a, have, d.force)
	case keep:
		c.actual.CancelDetachRequest(a.volume, a.node)
		c.forgive(a)
	case stay:
		c.stay(a, view, have)
	}
	if d.after > 0 {
		c.dirty.AddAt(a, time.Now().Add(d.after))
	}
}

// look gathers all that the decision depends on.
func (c *Controller) look(a attachment) (attachmentView, operationexecutor.VolumeToAttach, cache.ClusterAttachedVolume) {
	want, wanted := c.desired.VolumeToAttach(a.volume, a.node)
	have, _ := c.actual.Attachment(a.volume, a.node)
	node, _ := c.objects.nodes.Get(types.NamespacedName{Name: string(a.node)})
	view := attachmentView{wanted: wanted, state: have.AttachState, node: c.healthBy(node), sickFor: c.sickFor(node)}
	if !wanted && view.state != cache.NotAttached {
		if have.InUse == cache.AssumedInUse {
			c.askUse(a.node)
			have, _ = c.actual.Attachment(a.volume, a.node)
		}
		if since := c.actual.RequestDetach(a.volume, a.node); !since.IsZero() {
			view.unwantedFor = time.Since(since)
		}
	}
	view.use = have.InUse
	return view, want, have
}

// askUse takes over what a node's object says that the node uses. It may be older than the attachment; the executor reads the
// object itself before it detaches.
func (c *Controller) askUse(name types.NodeName) {
	node, there := c.objects.nodes.Get(types.NamespacedName{Name: string(name)})
	if !there {
		return
	}
	// A node of another UID is told by its own change.
	_ = c.takeUse(node)
}

// stay notes why nothing is done.
func (c *Controller) stay(a attachment, view attachmentView, have cache.ClusterAttachedVolume) {
	if view.wanted || view.state != cache.Attached && view.state != cache.AttachUncertain {
		if view.state == cache.NotAttached {
			c.forgive(a)
			c.executor.ResetBackoff(operationexecutor.Key{Volume: a.volume, Node: a.node})
		}
		return
	}
	var err error = &cache.NodeUsesVolumeError{VolumeName: a.volume, NodeName: a.node, InUse: view.use}
	if view.node == missing {
		err = &NodeMissingError{VolumeName: a.volume, NodeName: a.node}
		c.tellMissing(a, have, err)
	}
	c.note(a, trouble{err: err})
}

// tellMissing tells once that a volume stays attached to a node without an object.
func (c *Controller) tellMissing(a attachment, have cache.ClusterAttachedVolume, err error) {
	if errors.Is(c.troubleOf(a).err, ErrNodeMissing) {
		return
	}
	c.options.Logger.Warn("a volume that no pod wants stays attached", "volume", a.volume, "node", a.node, "err", err)
	if c.options.Recorder != nil && have.VolumeSpec != nil && have.VolumeSpec.PersistentVolume != nil {
		c.options.Recorder.Eventf(have.VolumeSpec.PersistentVolume, v1.EventTypeWarning, ReasonNodeMissing, "%v", err)
	}
}

// attach begins to attach a volume, or notes why that cannot begin.
func (c *Controller) attach(ctx context.Context, a attachment, want operationexecutor.VolumeToAttach) {
	// An attempt takes a place and, when it does not begin, gives it up, which makes the attachment dirty: one that must wait
	// would be begun again and again until then.
	if t := c.troubleOf(a); t.of == attach && time.Now().Before(t.until) {
		c.dirty.AddAt(a, t.until)
		return
	}
	if err := c.foreign.attachedElsewhere(a, want.VolumeSpec); err != nil {
		c.note(a, trouble{err: err})
		c.tellForeign(a, want, err)
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
		c.begun(a, attach, err) // It waits for its time, whatever it failed with.
	case errors.As(err, &elsewhere):
		c.note(a, trouble{err: err})
		c.tellMultiAttach(a, want, elsewhere)
	case errors.Is(err, cache.ErrAttachLimit):
		c.waitForRoom(a, want, err)
	default:
		c.begun(a, attach, err)
	}
}

// beginAttempt takes a place for a volume on a node, and keeps the attempt until its operation has ended.
func (c *Controller) beginAttempt(a attachment, want operationexecutor.VolumeToAttach) (*cache.AttachAttempt, error) {
	request := cache.AttachRequest{VolumeName: a.volume, VolumeSpec: want.VolumeSpec, NodeName: a.node}
	pluginName, _, err := volume.SplitUniqueName(a.volume)
	if err != nil {
		return nil, err
	}
	if limit, limited := c.limitOf(a.node, pluginName); limited {
		if limit <= 0 {
			return nil, &cache.AttachLimitError{NodeName: a.node, PluginName: pluginName, Count: c.actual.AttachCount(a.node, pluginName)}
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

// detach begins to detach a volume. What is forced is seen by everybody.
func (c *Controller) detach(ctx context.Context, a attachment, have cache.ClusterAttachedVolume, force ForceReason) {
	if err := c.foreign.attachedHere(a); err != nil {
		c.note(a, trouble{err: err})
		return
	}
	options := operationexecutor.DetachOptions{VerifySafeToDetach: force == NotForced}
	if force != NotForced {
		c.actual.AllowForcedDetach(a.volume, a.node)
		options.Confirm = func(ctx context.Context) error { return c.confirmForce(ctx, a, have, force) }
	}
	_, err := c.executor.DetachVolume(ctx, have.AttachedVolume, options, c.actual)
	c.begun(a, detach, err)
}

// confirmForce refuses to take a volume by force from a node that is well, or has been meanwhile, or is fenced off no more, by
// the node's object as it is now: what was seen of it last may be old. An object that is gone proves nothing. What is forced is
// told here, before it is done.
func (c *Controller) confirmForce(ctx context.Context, a attachment, have cache.ClusterAttachedVolume, force ForceReason) error {
	node, err := store.Get[*v1.Node](ctx, c.store, "", string(a.node))
	if err != nil {
		return volume.Transient(fmt.Errorf("whether node %q may be forced is not known: %w", a.node, err))
	}
	late := force == ForcedByTimeout && c.sickFor(node) >= c.options.MaxWaitForUnmount
	if c.healthBy(node) != fenced && !late {
		return volume.Transient(&cache.NodeUsesVolumeError{VolumeName: a.volume, NodeName: a.node, InUse: have.InUse})
	}
	c.tellForced(a, have, force)
	return nil
}

// begun notes why an operation did not begin.
func (c *Controller) begun(a attachment, of step, err error) {
	var late *volume.BackoffError
	var pending *volume.PendingError
	switch {
	case err == nil:
	case errors.As(err, &late):
		c.note(a, trouble{of: of, err: late.Err, attempts: late.Attempts, until: late.Until})
	case errors.As(err, &pending):
		// What holds the volume without being an operation on it, such as a verification of many, tells nobody of its end.
		c.note(a, trouble{of: of, err: err, attempts: c.troubleOf(a).attempts, until: time.Now().Add(c.options.delay(1))})
	case errors.Is(err, cache.ErrAttaching), errors.Is(err, cache.ErrDetaching):
		// The end of what is going on makes it dirty again.
	case errors.Is(err, operationexecutor.ErrShutDown), errors.Is(err, cache.ErrNodeUnknown):
		c.note(a, trouble{err: err})
	default:
		attempts := c.troubleOf(a).attempts + 1
		c.note(a, trouble{of: of, err: err, attempts: attempts, until: time.Now().Add(c.options.delay(attempts))})
	}
}

// note keeps why an attachment is not what it should be, and looks at it again when its time has come.
func (c *Controller) note(a attachment, t trouble) {
	c.mu.Lock()
	c.troubles[a] = t
	c.mu.Unlock()
	if !t.until.IsZero() {
		c.dirty.AddAt(a, t.until)
	}
}

func (c *Controller) forgive(a attachment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.troubles, a)
	if waiting := c.crowded[a.node]; waiting != nil {
		delete(waiting, a.volume)
		if len(waiting) == 0 {
			delete(c.crowded, a.node)
		}
	}
}

func (c *Controller) troubleOf(a attachment) trouble {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.troubles[a]
}

// waitForRoom has a volume wait until one is detached from the node. Its pods are told once. It is looked at once more when the wait
// begins: room that came between the attempt and the wait woke nobody.
func (c *Controller) waitForRoom(a attachment, want operationexecutor.VolumeToAttach, err error) {
	told := errors.Is(c.troubleOf(a).err, cache.ErrAttachLimit)
	c.note(a, trouble{err: err})
	if c.enterCrowd(a) {
		c.dirty.Add(a)
	}
	if !told {
		c.tellPods(want, fmt.Sprintf("volume %q is not attached: %v", want.VolumeSpec.Name(), err))
	}
}

// enterCrowd enters a volume among those that wait for room on a node, and reports whether it was not among them.
func (c *Controller) enterCrowd(a attachment) (entered bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.crowded[a.node] == nil {
		c.crowded[a.node] = map[v1.UniqueVolumeName]struct{}{}
	}
	if _, waits := c.crowded[a.node][a.volume]; waits {
		return false
	}
	c.crowded[a.node][a.volume] = struct{}{}
	return true
}

// tellMultiAttach tells the pods that wait, once, who has the volume.
func (c *Controller) tellMultiAttach(a attachment, want operationexecutor.VolumeToAttach, elsewhere *operationexecutor.MultiAttachError) {
	if !c.desired.MarkMultiAttachErrorReported(a.volume, a.node) {
		return
	}
	c.tellPods(want, fmt.Sprintf("volume %q can be on one node at a time and is on %s%s: it is attached to node %q when it is detached there",
		want.VolumeSpec.Name(), quoted(elsewhere.Nodes), c.holders(want, elsewhere.Nodes), a.node))
}

// tellForeign tells the pods that wait, once, of the foreign attachment that has the volume.
func (c *Controller) tellForeign(a attachment, want operationexecutor.VolumeToAttach, err error) {
	if c.desired.MarkMultiAttachErrorReported(a.volume, a.node) {
		c.tellPods(want, fmt.Sprintf("volume %q can be on one node at a time: %v", want.VolumeSpec.Name(), err))
	}
}

// holders names the pods for which other nodes have the volume.
func (c *Controller) holders(want operationexecutor.VolumeToAttach, nodes []types.NodeName) string {
	var names []string
	for _, held := range c.desired.VolumesToAttach(want.VolumeName) {
		if slices.Contains(nodes, held.NodeName) {
			for _, pod := range held.ScheduledPods {
				names = append(names, pod.Name)
			}
		}
	}
	if len(names) == 0 {
		return ", where no pod wants it any more"
	}
	return ", for the pods " + strings.Join(names, ", ")
}

func quoted(nodes []types.NodeName) string {
	names := make([]string, 0, len(nodes))
	for _, node := range nodes {
		names = append(names, fmt.Sprintf("%q", node))
	}
	return strings.Join(names, ", ")
}

func (c *Controller) tellPods(want operationexecutor.VolumeToAttach, message string) {
	if c.options.Recorder == nil {
		return
	}
	for _, pod := range want.ScheduledPods {
		c.options.Recorder.Eventf(pod, v1.EventTypeWarning, operationexecutor.ReasonFailedAttachVolume, "%s", message)
	}
}

// tellForced counts a forced detach and tells of it.
func (c *Controller) tellForced(a attachment, have cache.ClusterAttachedVolume, reason ForceReason) {
	c.mu.Lock()
	c.forced[reason]++
	c.mu.Unlock()
	c.options.Logger.Warn("a volume is taken from a node by force", "volume", a.volume, "node", a.node, "reason", string(reason), "use", have.InUse.String())
	if c.options.Recorder == nil {
		return
	}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(a.node), UID: have.NodeUID}}
	if seen, there := c.objects.nodes.Get(store.NameOf(node)); there {
		node = seen
	}
	c.options.Recorder.Eventf(node, v1.EventTypeWarning, ReasonForcedDetach, "volume %q is %s on this node and is detached by force: %s",
		a.volume, have.InUse, reason)
}
