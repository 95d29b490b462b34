package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// claimChanged is called when a claim is new, changed or gone.
func (c *Controller) claimChanged(claim *v1.PersistentVolumeClaim) {
	c.work.add(claimItem, store.NameOf(claim))
	if claim.Spec.VolumeName != "" {
		c.work.add(volumeItem, volumeKey(claim.Spec.VolumeName))
	}
	if now, there := c.claims.Get(store.NameOf(claim)); there && now.UID == claim.UID {
		return
	}
	c.wakeOwner(store.NameOf(claim))
	for _, pv := range c.volumesOf.Get(store.NameOf(claim)) {
		c.work.add(volumeItem, store.NameOf(pv))
	}
}

// classChanged is called when a class is new, changed or gone: claims that have no volume may wait for it. One of which a worker is
// just finding that out is among them: it is looked at again.
func (c *Controller) classChanged(*storagev1.StorageClass) {
	for _, claim := range c.claims.All() {
		if claim.Spec.VolumeName == "" {
			c.work.add(claimItem, store.NameOf(claim))
		}
	}
}

// syncClaim does the next thing for one claim.
func (c *Controller) syncClaim(ctx context.Context, name types.NamespacedName) error {
	claim, ok := c.claims.Get(name)
	if !ok {
		c.served(name)
		return nil
	}
	if old, ok := c.pending.get(name); ok && old.UID != claim.UID {
		c.served(name)
	}
	orphan, err := c.isOrphan(ctx, claim)
	switch {
	case errors.Is(err, store.ErrConflict):
		return errors.Join(c.serve(ctx, claim), err) // Its pod is there.
	case err != nil:
		return err
	case orphan:
		return c.collect(ctx, claim)
	}
	return c.serve(ctx, claim)
}

// serve does the next thing for a claim that is to stay as long as nobody deletes it.
func (c *Controller) serve(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	_, completed := claim.Annotations[AnnBindCompleted]
	switch {
	case completed && claim.DeletionTimestamp != nil:
		return errors.Join(c.syncBound(ctx, claim), c.unprotectClaim(ctx, claim))
	case completed:
		return c.syncBound(ctx, claim)
	case claim.DeletionTimestamp != nil:
		return c.syncDying(ctx, claim)
	case claim.Spec.VolumeName == "":
		return c.syncUnnamed(ctx, claim)
	default:
		return c.syncNamed(ctx, claim)
	}
}

// syncUnnamed serves an unbound claim that names no volume.
func (c *Controller) syncUnnamed(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	// More than a plugin can make may be there all the same.
	if _, err := volume.RequestedBytes(claim); err != nil && !errors.Is(err, volume.ErrInfeasible) {
		return c.wait(ctx, claim, failedBinding("%v", err))
	}
	made, err := c.provisioned(ctx, claim)
	if err != nil {
		return err
	}
	if made != nil {
		return c.bind(ctx, claim, made)
	}
	node, err := c.nodeOf(ctx, claim)
	if err != nil {
		return err
	}
	class, _ := c.classes.Get(volumeKey(classOf(claim)))
	n, err := needOf(claim, node)
	if err != nil {
		return c.wait(ctx, claim, failedBinding("its selector is malformed: %v", err))
	}
	reserved := c.volumesOf.Get(store.NameOf(claim))
	if match := bestReserved(claim, reserved); match != nil {
		if !reachable(match, node) {
			return c.refuse(ctx, claim, match, unreachable)
		}
		return c.bind(ctx, claim, match)
	}
	if !c.nodeIsAwaited(claim, class) {
		if found, err := c.bindFree(ctx, n); found {
			return err
		}
	}
	if pv, why := unfitReserved(claim, reserved); pv != nil {
		return c.refuse(ctx, claim, pv, why)
	}
	return c.syncUnmatched(ctx, claim, class)
}

// bindFree binds a claim to a volume that names none, and reports whether there is one that fits. Where there is none the
// claim waits for one: it waits before it looks for the last time, so that no volume comes in between.
func (c *Controller) bindFree(ctx context.Context, n need) (found bool, err error) {
	pv := c.stock.take(n)
	if pv == nil {
		c.offerNext(store.NameOf(n.claim), c.waiters.add(n))
		pv = c.stock.take(n)
	}
	if pv == nil {
		return false, nil
	}
	if err := c.bind(ctx, n.claim, pv); err != nil {
		if c.stock.giveBack(pv.Name) {
			c.work.add(volumeItem, volumeKey(pv.Name))
		}
		return true, err
	}
	return true, nil
}

// offerNext has a volume that was offered to a claim, and that it did not take, offered to the next; "" means none.
func (c *Controller) offerNext(claim types.NamespacedName, volumeName string) {
	if volumeName != "" {
		c.stock.withdraw(volumeName, claim)
		c.work.add(volumeItem, volumeKey(volumeName))
	}
}

// served has a claim wait no more: it is bound, gone or lost.
func (c *Controller) served(name types.NamespacedName) {
	c.pending.remove(name)
	c.offerNext(name, c.waiters.remove(name))
}

// nodeIsAwaited reports whether nothing may be chosen yet, since the node of the claim's pod is not known. class may be
// nil.
func (c *Controller) nodeIsAwaited(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) bool {
	return class != nil && waitsForConsumer(class) && c.selectedNode(claim) == ""
}

// syncUnmatched serves an unbound claim that no volume fits. class is the one that it names; nil when that is none.
func (c *Controller) syncUnmatched(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) error {
	switch {
	case classIsOpen(claim):
		return c.assignDefaultClass(ctx, claim)
	case classOf(claim) == "":
		return c.wait(ctx, claim, noVolumes())
	case class == nil:
		return c.wait(ctx, claim, provisioningFailed(
			fmt.Errorf("no volume fits, and storage class %q does not exist: create the class or name another", classOf(claim))))
	case c.nodeIsAwaited(claim, class):
		return c.wait(ctx, claim, c.consumerAwaited(claim))
	}
	return c.provision(ctx, claim, class)
}

// consumerAwaited says for what a claim waits whose node is not known.
func (c *Controller) consumerAwaited(claim *v1.PersistentVolumeClaim) reason {
	why := reason{
		eventType: v1.EventTypeNormal, reason: ReasonWaitForFirstConsumer,
		message: "waiting for first consumer to be created before binding: the node is not selected yet",
	}
	if pod := c.firstConsumer(claim); pod != nil {
		why.reason, why.message = ReasonWaitForPodScheduled, fmt.Sprintf("waiting for pod %q to be scheduled", store.NameOf(pod))
	}
	return why
}

// provisioned returns the volume that was made for this claim before, when the bind was broken off.
func (c *Controller) provisioned(ctx context.Context, claim *v1.PersistentVolumeClaim) (*v1.PersistentVolume, error) {
	if !slices.Contains(claim.Finalizers, FinalizerProvisioning) {
		return nil, nil
	}
	pv, err := store.Get[*v1.PersistentVolume](ctx, c.store, "", provisionedName(claim))
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case !ownedBy(pv, claim):
		return nil, fmt.Errorf("volume %q has the name of the one for claim %q but is not its: rename or delete it: %w",
			pv.Name, store.NameOf(claim), volume.ErrInUse)
	}
	return pv, nil
}

// assignDefaultClass gives a claim that left its class open the default class, if there is one.
func (c *Controller) assignDefaultClass(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	class := defaultClass(c.classes.All())
	if class == nil {
		return c.wait(ctx, claim, noVolumes())
	}
	changed := claim.DeepCopy()
	changed.Spec.StorageClassName = &class.Name
	updated, err := c.updateClaim(ctx, changed)
	if err != nil {
		return err
	}
	return c.syncUnnamed(ctx, updated)
}

// syncNamed serves an unbound claim that names its volume.
func (c *Controller) syncNamed(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	pv, err := store.Get[*v1.PersistentVolume](ctx, c.store, "", claim.Spec.VolumeName)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrInvalid):
		return c.wait(ctx, claim, failedBinding("volume %q, which the claim names, does not exist", claim.Spec.VolumeName))
	case err != nil:
		return err
	case pv.Spec.ClaimRef == nil || reservedFor(pv, claim):
		if err := c.bindNamed(ctx, claim, pv); err != nil {
			return err
		}
		return awaitChange(c.volumes, pv)
	}
	why := failedBinding("volume %q already bound to a different claim", pv.Name)
	if _, chosen := claim.Annotations[AnnBoundByController]; chosen {
		why.message += ": a controller chose it for this claim, and somebody has changed the volume or the claim since: make the claim anew"
	}
	if err := c.wait(ctx, claim, why); err != nil {
		return err
	}
	return awaitChange(c.volumes, pv)
}

// bindNamed binds a claim to the volume that it names, if the two fit.
func (c *Controller) bindNamed(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) error {
	node, err := c.nodeOf(ctx, claim)
	if err != nil {
		return err
	}
	if why := misfit(claim, node, pv); why != "" {
		return c.refuse(ctx, claim, pv, why)
	}
	return c.bind(ctx, claim, pv)
}

// syncBound keeps a claim that was bound once true: it repairs the bind, or finds that the volume is lost.
func (c *Controller) syncBound(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	if claim.Spec.VolumeName == "" {
		return c.lose(ctx, claim, ReasonClaimLost, "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
	}
	if pv, there := c.volumes.Get(volumeKey(claim.Spec.VolumeName)); there && isWhole(claim, pv) {
		c.served(store.NameOf(claim))
		return nil
	}
	pv, err := store.Get[*v1.PersistentVolume](ctx, c.store, "", claim.Spec.VolumeName)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrInvalid):
		return c.lose(ctx, claim, ReasonClaimLost, "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
	case err != nil:
		return err
	case pv.Spec.ClaimRef == nil && claim.Status.Phase == v1.ClaimLost:
		return nil // a volume that only has the name of the one that was lost
	case pv.Spec.ClaimRef == nil || reservedFor(pv, claim):
		if err := c.bind(ctx, claim, pv); err != nil {
			return err
		}
		return awaitChange(c.volumes, pv)
	}
	return c.lose(ctx, claim, ReasonClaimMisbound, "Two claims are bound to the same volume, this one is bound incorrectly")
}

// isWhole reports whether every write of the bind of claim and volume was made. What has changed since and was not seen yet is
// seen soon: nothing is concluded from it.
func isWhole(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) bool {
	return ownedBy(pv, claim) && pv.Status.Phase == v1.VolumeBound && pv.Status.Message == "" &&
		claim.Status.Phase == v1.ClaimBound && slices.Equal(claim.Status.AccessModes, pv.Spec.AccessModes) &&
		!slices.Contains(claim.Finalizers, FinalizerProvisioning) &&
		!unprotected(&claim.ObjectMeta, FinalizerClaimProtection) && !unprotected(&pv.ObjectMeta, FinalizerVolumeProtection)
}

// lose writes that the claim has lost its volume. It stays so.
func (c *Controller) lose(ctx context.Context, claim *v1.PersistentVolumeClaim, why, message string) error {
	c.served(store.NameOf(claim))
	if claim.Status.Phase == v1.ClaimLost {
		return c.protectClaim(ctx, claim)
	}
	changed := claim.DeepCopy()
	withoutVolume(changed, v1.ClaimLost)
	reason{reason: why, message: message}.writeTo(changed)
	if _, err := c.updateClaim(ctx, changed); err != nil {
		return err
	}
	c.options.Events.Eventf(claim, v1.EventTypeWarning, why, "%s", message)
	return nil
}

// wait leaves the claim Pending and says why, in its status too, where the manager of a node reads it for those who wait for a pod.
// What it waits for wakes it. Nodes are read and not followed: a claim of which the node is known is looked at again after a while,
// since the node's labels may fit by then.
func (c *Controller) wait(ctx context.Context, claim *v1.PersistentVolumeClaim, why reason) error {
	changed := claim.DeepCopy()
	emptied := withoutVolume(changed, v1.ClaimPending)
	if why.writeTo(changed) || emptied || unprotected(&claim.ObjectMeta, FinalizerClaimProtection) {
		updated, err := c.updateClaim(ctx, changed)
		if err != nil {
			return err
		}
		claim = updated
	}
	c.waits(claim, why)
	if c.selectedNode(claim) != "" {
		c.work.addLater(item{claimItem, store.NameOf(claim)})
	}
	return nil
}

// selectedNode returns the node that a volume is made for, "" when it is not known: the one that a scheduler has selected, or the
// one that everything runs on, or that of the claim's first pod, where pods are given nodes without a scheduler.
func (c *Controller) selectedNode(claim *v1.PersistentVolumeClaim) types.NodeName {
	if node := claim.Annotations[AnnSelectedNode]; node != "" {
		return types.NodeName(node)
	}
	if c.options.NodeName != "" {
		return c.options.NodeName
	}
	if pod := c.firstConsumer(claim); pod != nil {
		return types.NodeName(pod.Spec.NodeName)
	}
	return ""
}

// noVolumes is why a claim waits that asks for none to be made. Nothing is wrong with that.
func noVolumes() reason {
	return reason{
		eventType: v1.EventTypeNormal, reason: ReasonFailedBinding,
		message: "no persistent volumes available for this claim and no storage class is set",
	}
}

func failedBinding(format string, args ...any) reason {
	return reason{eventType: v1.EventTypeWarning, reason: ReasonFailedBinding, message: fmt.Sprintf(format, args...)}
}

// refuse leaves the claim Pending because the volume that it names, or that names it, does not fit. Both are told.
func (c *Controller) refuse(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, why string) error {
	message := fmt.Sprintf("cannot bind to requested volume %q: %s", pv.Name, why)
	return c.wait(ctx, claim, reason{
		eventType: v1.EventTypeWarning, reason: ReasonVolumeMismatch, message: message, volume: pv,
	})
}
