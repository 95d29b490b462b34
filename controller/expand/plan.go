package expand

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// reasonExternalExpanding is the event reason for a claim whose volume another program expands.
const reasonExternalExpanding = "ExternalExpanding"

// errClass says that the claim's storage class does not allow the expansion.
var errClass = errors.New("set allowVolumeExpansion of the storage class, or ask for less")

// expansion is an operation that was begun for a claim.
type expansion struct {
	operation *operationexecutor.Operation
	uid       types.UID
	request   resource.Quantity
}

func requested(claim *v1.PersistentVolumeClaim) resource.Quantity {
	return claim.Spec.Resources.Requests[v1.ResourceStorage]
}

// planAll handles dirty claims until ctx ends. Only this goroutine begins operations.
func (c *Controller) planAll(ctx context.Context) {
	for {
		name, ok := c.dirty.Get(ctx)
		if !ok {
			return
		}
		c.look(ctx, name)
	}
}

// look takes the next step for one claim.
func (c *Controller) look(ctx context.Context, name types.NamespacedName) {
	if !c.finished(name) {
		return // The end of the operation makes the claim dirty.
	}
	claim, there := c.claims.Get(name)
	if !there {
		c.standstills.forget(name)
		return
	}
	if claim.Status.Phase != v1.ClaimBound || claim.DeletionTimestamp != nil {
		c.standstills.resume(name)
		return
	}
	pv, there := c.volumes.Get(types.NamespacedName{Name: claim.Spec.VolumeName})
	if !there || !belong(claim, pv) || !isControls(claim, pv) {
		c.standstills.resume(name)
		return
	}
	if !c.mayTry(claim) {
		return
	}
	if err := c.allowed(claim); err != nil {
		c.standStill(claim, standstill{err: err}, operationexecutor.ReasonVolumeResizeFailed)
		return
	}
	c.begin(ctx, claim, pv)
}

// isControls reports whether the control plane has to take the next step for a claim: the claim requests more than it has,
// or only the control plane can continue an expansion that was begun. While a node has to expand the filesystem, the node
// takes the next step.
func isControls(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) bool {
	want, has, allocated := requested(claim), claim.Status.Capacity[v1.ResourceStorage], claim.Status.AllocatedResources[v1.ResourceStorage]
	size := pv.Spec.Capacity[v1.ResourceStorage]
	switch claim.Status.AllocatedResourceStatuses[v1.ResourceStorage] {
	case v1.PersistentVolumeClaimNodeResizePending, v1.PersistentVolumeClaimNodeResizeInProgress:
		return size.Cmp(allocated) < 0
	case v1.PersistentVolumeClaimControllerResizeInProgress, v1.PersistentVolumeClaimControllerResizeInfeasible,
		v1.PersistentVolumeClaimNodeResizeInfeasible:
		return true
	}
	return !has.IsZero() && want.Cmp(has) > 0
}

// allowed returns why a claim must not be expanded, or nil. An expansion that was begun is finished, even if the class
// forbids it by now. A claim without a class has a volume that was made by hand, and may be expanded.
func (c *Controller) allowed(claim *v1.PersistentVolumeClaim) error {
	begun := claim.Status.AllocatedResourceStatuses[v1.ResourceStorage] != ""
	name := classOf(claim)
	if begun || name == "" {
		return nil
	}
	class, there := c.classes.Get(types.NamespacedName{Name: name})
	switch {
	case !there:
		return fmt.Errorf("storage class %q does not exist: %w: %w", name, store.ErrNotFound, errClass)
	case !allowsExpansion(class):
		return fmt.Errorf("storage class %q does not allow that volumes grow: %w", name, errClass)
	}
	return nil
}

// classOf returns the name of a claim's class, "" for none.
func classOf(claim *v1.PersistentVolumeClaim) string {
	if name, annotated := claim.Annotations[v1.BetaStorageClassAnnotation]; annotated {
		return name
	}
	if claim.Spec.StorageClassName == nil {
		return ""
	}
	return *claim.Spec.StorageClassName
}

func allowsExpansion(class *storagev1.StorageClass) bool {
	return class.AllowVolumeExpansion != nil && *class.AllowVolumeExpansion
}

// begin begins an expansion.
func (c *Controller) begin(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
	spec := volume.NewSpecFromPersistentVolume(pv, false)
	plugin, err := c.plugins.FindExpandablePluginBySpec(spec)
	switch {
	case errors.Is(err, volume.ErrNoPlugin):
		c.standStill(claim, standstill{err: err}, reasonExternalExpanding)
		return
	case err != nil:
		c.standStill(claim, standstill{err: err}, operationexecutor.ReasonVolumeResizeFailed)
		return
	}
	volumeName, err := c.plugins.UniqueVolumeName("", spec)
	if err != nil {
		c.standStill(claim, standstill{err: err}, operationexecutor.ReasonVolumeResizeFailed)
		return
	}
	name := store.NameOf(claim)
	if s, stays := c.standstills.of(name); stays && !s.isOf(claim) { // The earlier failure was about another size.
		c.executor.ResetBackoff(operationexecutor.Key{Volume: volumeName})
	}
	c.claimOf.put(volumeName, name)
	op, err := c.executor.ExpandVolume(ctx, operationexecutor.VolumeToExpand{
		VolumeName: volumeName, VolumeSpec: spec, PluginName: plugin.GetPluginName(),
	})
	if err == nil {
		c.running[name] = expansion{operation: op, uid: claim.UID, request: requested(claim)}
		return
	}
	c.notBegun(claim, volumeName, err)
}

// notBegun stores why an operation could not begin, and until when it must wait.
func (c *Controller) notBegun(claim *v1.PersistentVolumeClaim, volumeName v1.UniqueVolumeName, err error) {
	var pending *volume.PendingError
	if !errors.As(err, &pending) {
		c.claimOf.remove(volumeName)
	}
	s := standstill{err: err, uid: claim.UID, request: requested(claim)}
	var late *volume.BackoffError
	if errors.As(err, &late) {
		s.err, s.until = late.Err, late.Until
	}
	c.standstills.keep(store.NameOf(claim), s) // If another operation is pending, its end makes the claim dirty.
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
		c.standstills.resume(name)
		return true
	}
	c.standstills.keep(name, standstill{err: err, uid: last.uid, request: last.request}) // The executor keeps the back-off.
	return true
}

// mayTry reports whether the controller may work on a claim now. A size that is infeasible on a node is tried again as
// rarely as one that is infeasible for the storage.
func (c *Controller) mayTry(claim *v1.PersistentVolumeClaim) bool {
	name := store.NameOf(claim)
	s, stays := c.standstills.of(name)
	if stays && s.isOf(claim) && time.Now().Before(s.until) {
		c.dirty.AddAt(name, s.until)
		return false
	}
	if claim.Status.AllocatedResourceStatuses[v1.ResourceStorage] == v1.PersistentVolumeClaimNodeResizeInfeasible {
		// The node gets one more attempt now, and the next after the back-off.
		c.standstills.put(name, standstill{uid: claim.UID, request: requested(claim), until: time.Now().Add(c.options.Backoff.Infeasible)})
	}
	return true
}

// standStill stores why the controller does not work on a claim until something changes. It writes one event for the same
// error.
func (c *Controller) standStill(claim *v1.PersistentVolumeClaim, s standstill, reason string) {
	s.uid, s.request = claim.UID, requested(claim)
	name := store.NameOf(claim)
	old, known := c.standstills.of(name)
	c.standstills.keep(name, s)
	if c.options.Events == nil || known && old.isOf(claim) && old.err != nil && old.err.Error() == s.err.Error() {
		return
	}
	kind := v1.EventTypeWarning
	if reason == reasonExternalExpanding {
		kind = v1.EventTypeNormal
	}
	c.options.Events.Eventf(claim, kind, reason, "the claim asks for more and is not expanded here: %v", s.err)
}
