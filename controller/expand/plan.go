package expand

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// change is one kind of change of the volumes of claims. The planner's goroutine alone calls its methods, except for
// blockedClaims.
type change interface {
	// isWanted reports whether the control plane has to take the next step for a claim.
	isWanted(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) bool
	// isUncertain reports whether a call was made, or may have been, that is not known to have ended. No other change of the
	// volume begins until that is known.
	isUncertain(claim *v1.PersistentVolumeClaim) bool
	// request returns what the claim asks for.
	request(claim *v1.PersistentVolumeClaim) request
	// mayTry reports whether the claim need not wait longer after a failure.
	mayTry(claim *v1.PersistentVolumeClaim) bool
	// allowed returns why the claim waits until an object changes, or nil.
	allowed(claim *v1.PersistentVolumeClaim) error
	// plugin returns the name of the plugin that makes the change.
	plugin(spec *volume.Spec) (string, error)
	// begin begins the operation.
	begin(ctx context.Context, v target) (*operationexecutor.Operation, error)
	// blockedClaims are the claims that do not get the change now, with the reasons.
	blockedClaims() *blockedClaims
	events() changeEvents
}

// target is the volume that is changed.
type target struct {
	name   v1.UniqueVolumeName
	spec   *volume.Spec
	plugin string
}

// changeEvents are the events of a claim that does not get a change.
type changeEvents struct {
	// failed and external are the reasons: a warning, and that another program has to make the change.
	failed, external string
	// message has one verb, for the error.
	message string
}

// running is an operation that was begun for a claim.
type running struct {
	operation *operationexecutor.Operation
	change    change
	request   request
}

// planAll handles dirty claims until ctx ends. Only this goroutine begins operations.
func (c *Controller) planAll(ctx context.Context) {
	for {
		name, ok := c.dirty.Get(ctx)
		if !ok {
			return
		}
		c.plan(ctx, name)
	}
}

// plan takes the next step for one claim.
func (c *Controller) plan(ctx context.Context, name types.NamespacedName) {
	if !c.finished(name) {
		return // The end of the operation makes the claim dirty.
	}
	claim, there := c.claims.Get(name)
	if !there {
		c.expansions.blocked.remove(name)
		c.modifications.blocked.remove(name)
		return
	}
	pv := c.volumeOf(claim)
	for _, next := range c.inOrder(claim) {
		if pv == nil || !next.isWanted(claim, pv) {
			next.blockedClaims().unblock(name)
			continue
		}
		if c.try(ctx, next, claim, pv) || next.isUncertain(claim) {
			return
		}
	}
}

// inOrder returns the changes of a claim's volume, that first whose effect is not known.
func (c *Controller) inOrder(claim *v1.PersistentVolumeClaim) [2]change {
	if c.modifications.isUncertain(claim) && !c.expansions.isUncertain(claim) {
		return [2]change{c.modifications, c.expansions}
	}
	return [2]change{c.expansions, c.modifications}
}

// volumeOf returns the volume of a claim that is bound to it and stays; nil for any other claim.
func (c *Controller) volumeOf(claim *v1.PersistentVolumeClaim) *v1.PersistentVolume {
	if claim.Status.Phase != v1.ClaimBound || claim.DeletionTimestamp != nil {
		return nil
	}
	pv, there := c.volumes.Get(types.NamespacedName{Name: claim.Spec.VolumeName})
	if !there || !belong(claim, pv) {
		return nil
	}
	return pv
}

// try begins a change, and reports whether an operation runs. If none does, blockedClaims has the reason.
func (c *Controller) try(ctx context.Context, next change, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) bool {
	if !next.mayTry(claim) {
		return false
	}
	if err := next.allowed(claim); err != nil {
		c.block(next, claim, err)
		return false
	}
	spec := volume.NewSpecFromPersistentVolume(pv, false)
	plugin, err := next.plugin(spec)
	if err != nil {
		c.block(next, claim, err)
		return false
	}
	volumeName, err := c.plugins.UniqueVolumeName("", spec)
	if err != nil {
		c.block(next, claim, err)
		return false
	}
	return c.begin(ctx, next, claim, target{name: volumeName, spec: spec, plugin: plugin})
}

func (c *Controller) begin(ctx context.Context, next change, claim *v1.PersistentVolumeClaim, v target) bool {
	name, wanted := store.NameOf(claim), next.request(claim)
	if s, stays := next.blockedClaims().get(name); stays && s.request != wanted {
		c.executor.ResetBackoff(operationexecutor.Key{Volume: v.name})
	}
	c.claimOf.put(v.name, name)
	op, err := next.begin(ctx, v)
	if err == nil {
		c.running[name] = running{operation: op, change: next, request: wanted}
		return true
	}
	c.notBegun(next, claim, v.name, err)
	return false
}

// notBegun stores why an operation could not begin, and until when it must wait.
func (c *Controller) notBegun(next change, claim *v1.PersistentVolumeClaim, volumeName v1.UniqueVolumeName, err error) {
	var pending *volume.PendingError
	if !errors.As(err, &pending) {
		c.claimOf.remove(volumeName)
	}
	s := blockedClaim{err: err, request: next.request(claim)}
	var late *volume.BackoffError
	if errors.As(err, &late) {
		s.err, s.until = late.Err, late.Until
	}
	next.blockedClaims().keep(store.NameOf(claim), s) // If another operation is pending, its end makes the claim dirty.
}

// finished reports whether no operation runs for a claim. It stores the result of an operation that has ended.
func (c *Controller) finished(name types.NamespacedName) bool {
	last, began := c.running[name]
	if !began {
		return true
	}
	select {
	case <-last.operation.Done():
	default:
		return false
	}
	delete(c.running, name)
	err := last.operation.Err()
	if err == nil {
		last.change.blockedClaims().unblock(name)
		return true
	}
	last.change.blockedClaims().keep(name, blockedClaim{err: err, request: last.request}) // The executor keeps the back-off.
	return true
}

// block stores why the controller does not work on a claim until something changes. It writes one event for the same
// error.
func (c *Controller) block(next change, claim *v1.PersistentVolumeClaim, err error) {
	name, wanted := store.NameOf(claim), next.request(claim)
	old, known := next.blockedClaims().get(name)
	next.blockedClaims().keep(name, blockedClaim{err: err, request: wanted})
	if c.options.Events == nil || known && old.request == wanted && old.err != nil && old.err.Error() == err.Error() {
		return
	}
	events := next.events()
	if errors.Is(err, volume.ErrNoPlugin) {
		c.options.Events.Eventf(claim, v1.EventTypeNormal, events.external, events.message, err)
		return
	}
	c.options.Events.Eventf(claim, v1.EventTypeWarning, events.failed, events.message, err)
}
