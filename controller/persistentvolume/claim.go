package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/fit"
	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/bind"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/ephemeral"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/inuse"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/match"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// claimSync syncs claims: it binds them, has volumes provisioned for them, and removes their finalizers.
type claimSync struct {
	store        store.Store
	mirrors      *mirrors
	queue        *work.Queue
	placement    placement
	matcher      *match.Matcher
	binder       *bind.Binder
	ephemeral    *ephemeral.Controller
	users        *inuse.Tracker
	pending      *pendingClaims
	provisioning *provisioning
	populating   *populating
	events       volume.EventRecorder
}

// sync does the next step for one claim.
func (s *claimSync) sync(ctx context.Context, name types.NamespacedName) error {
	claim, ok := s.mirrors.claims.Get(name)
	if !ok {
		s.endWait(name)
		return nil
	}
	if old, ok := s.pending.get(name); ok && old.UID != claim.UID {
		s.endWait(name)
	}
	orphan, err := s.ephemeral.IsOrphan(ctx, claim)
	switch {
	case errors.Is(err, store.ErrConflict):
		return errors.Join(s.syncExisting(ctx, claim), err) // Its pod exists.
	case err != nil:
		return err
	case orphan:
		return s.ephemeral.Delete(ctx, claim)
	}
	return s.syncExisting(ctx, claim)
}

// syncExisting does the next step for a claim that is no orphan.
func (s *claimSync) syncExisting(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	_, completed := claim.Annotations[objects.AnnBindCompleted]
	switch {
	case completed && claim.DeletionTimestamp != nil:
		return errors.Join(s.bound(ctx, claim), s.unprotect(ctx, claim))
	case completed:
		return s.bound(ctx, claim)
	case claim.DeletionTimestamp != nil:
		return s.syncDeleted(ctx, claim)
	case claim.Spec.VolumeName == "":
		return s.unnamed(ctx, claim)
	default:
		return s.named(ctx, claim)
	}
}

// unnamed syncs an unbound claim that names no volume.
func (s *claimSync) unnamed(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	// An existing volume may still be large enough.
	if _, err := volume.RequestedBytes(claim); err != nil && !errors.Is(err, volume.ErrInfeasible) {
		return s.pending.wait(ctx, claim, failedBinding("%v", err))
	}
	made, err := s.provisioning.provisioned(ctx, claim)
	if err != nil {
		return err
	}
	if made != nil {
		return s.bindMade(ctx, claim, made)
	}
	node, err := s.placement.node(ctx, claim)
	if err != nil {
		return err
	}
	class, err := s.mirrors.class(ctx, claim)
	if err != nil {
		return err
	}
	need, err := match.NewNeed(claim, node)
	if err != nil {
		return s.pending.wait(ctx, claim, failedBinding("its selector is malformed: %v", err))
	}
	reserved := s.mirrors.volumesOf.Get(store.NameOf(claim))
	if best := fit.BestReserved(claim, reserved); best != nil {
		if !fit.Reachable(best, node) {
			return s.pending.refuse(ctx, claim, best, fit.Unreachable)
		}
		return s.bind(ctx, claim, best)
	}
	if !s.placement.isAwaited(claim, class) {
		if found, err := s.bindFree(ctx, claim, need); found {
			return err
		}
	}
	if pv, why := fit.UnfitReserved(claim, reserved); pv != nil {
		return s.pending.refuse(ctx, claim, pv, why)
	}
	return s.unmatched(ctx, claim, class)
}

// bindMade binds a claim to its provisioned volume, once the volume is full.
func (s *claimSync) bindMade(ctx context.Context, claim *v1.PersistentVolumeClaim, made *v1.PersistentVolume) error {
	full, err := s.populating.fill(ctx, claim, made)
	if err != nil || full == nil {
		return err
	}
	return s.bind(ctx, claim, full)
}

// bindFree binds a claim to a volume that names no claim, and reports whether one fits. If none fits, the claim waits
// for one.
func (s *claimSync) bindFree(ctx context.Context, claim *v1.PersistentVolumeClaim, need match.Need) (found bool, err error) {
	pv := s.matcher.Take(need)
	if pv == nil {
		return false, nil
	}
	if err := s.bind(ctx, claim, pv); err != nil {
		s.matcher.GiveBack(pv.Name)
		return true, err
	}
	return true, nil
}

// bind binds claim and volume to each other, and ends the claim's wait.
func (s *claimSync) bind(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) error {
	if err := s.binder.Bind(ctx, claim, pv); err != nil {
		return err
	}
	s.endWait(store.NameOf(claim))
	return nil
}

// endWait ends the wait of a claim that is bound, gone or lost.
func (s *claimSync) endWait(name types.NamespacedName) {
	s.pending.remove(name)
	s.matcher.Remove(name)
}

// unmatched syncs an unbound claim that no volume fits. class is the class that it names; nil for none.
func (s *claimSync) unmatched(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) error {
	switch {
	case objects.LeavesClassOpen(claim):
		return s.assignDefaultClass(ctx, claim)
	case objects.ClassOf(claim) == "":
		return s.pending.wait(ctx, claim, noVolumes())
	case class == nil:
		return s.pending.wait(ctx, claim, provisioningFailed(
			fmt.Errorf("no volume fits, and storage class %q does not exist: create the class or name another", objects.ClassOf(claim))))
	case s.placement.isAwaited(claim, class):
		return s.pending.wait(ctx, claim, s.placement.whyAwaited(claim))
	}
	if bound, err := s.provisioning.provision(ctx, claim, class); err != nil || !bound {
		return err
	}
	s.endWait(store.NameOf(claim))
	return nil
}

// assignDefaultClass sets the default class, if there is one, on a claim that leaves its class open.
func (s *claimSync) assignDefaultClass(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	class := objects.DefaultClass(s.mirrors.classes.All())
	if class == nil {
		return s.pending.wait(ctx, claim, noVolumes())
	}
	changed := claim.DeepCopy()
	changed.Spec.StorageClassName = &class.Name
	updated, err := s.binder.UpdateClaim(ctx, changed)
	if err != nil {
		return err
	}
	return s.unnamed(ctx, updated)
}

// named syncs an unbound claim that names its volume.
func (s *claimSync) named(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	pv, err := store.Get[*v1.PersistentVolume](ctx, s.store, "", claim.Spec.VolumeName)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrInvalid):
		return s.pending.wait(ctx, claim, failedBinding("volume %q, which the claim names, does not exist", claim.Spec.VolumeName))
	case err != nil:
		return err
	case objects.IsUnfilled(pv) && objects.OwnedBy(pv, claim):
		return s.bindMade(ctx, claim, pv)
	case pv.Spec.ClaimRef == nil || objects.ReservedFor(pv, claim):
		if err := s.bindNamed(ctx, claim, pv); err != nil {
			return err
		}
		return work.AwaitChange(s.mirrors.volumes, pv)
	}
	why := failedBinding("volume %q already bound to a different claim", pv.Name)
	if _, chosen := claim.Annotations[objects.AnnBoundByController]; chosen {
		why.message += ": a controller chose it for this claim, and the volume or the claim has changed since: make the claim anew"
	}
	if err := s.pending.wait(ctx, claim, why); err != nil {
		return err
	}
	return work.AwaitChange(s.mirrors.volumes, pv)
}

// bindNamed binds a claim to the volume that it names, if the two fit.
func (s *claimSync) bindNamed(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) error {
	node, err := s.placement.node(ctx, claim)
	if err != nil {
		return err
	}
	if why := fit.Misfit(claim, node, pv); why != "" {
		return s.pending.refuse(ctx, claim, pv, why)
	}
	return s.bind(ctx, claim, pv)
}

// bound syncs a claim that was bound before: it repairs the bind, or finds that the volume is lost.
func (s *claimSync) bound(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	if claim.Spec.VolumeName == "" {
		return s.markLost(ctx, claim, objects.ReasonClaimLost, "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
	}
	if pv, there := s.mirrors.volumes.Get(objects.Named(claim.Spec.VolumeName)); there && bind.IsWhole(claim, pv) {
		s.endWait(store.NameOf(claim))
		return nil
	}
	pv, err := store.Get[*v1.PersistentVolume](ctx, s.store, "", claim.Spec.VolumeName)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrInvalid):
		return s.markLost(ctx, claim, objects.ReasonClaimLost, "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
	case err != nil:
		return err
	case pv.Spec.ClaimRef == nil && claim.Status.Phase == v1.ClaimLost:
		return nil // another volume with the name of the lost one
	case pv.Spec.ClaimRef == nil || objects.ReservedFor(pv, claim):
		if err := s.bind(ctx, claim, pv); err != nil {
			return err
		}
		return work.AwaitChange(s.mirrors.volumes, pv)
	}
	return s.markLost(ctx, claim, objects.ReasonClaimMisbound, "Two claims are bound to the same volume, this one is bound incorrectly")
}

// markLost sets the claim's phase to Lost, for good.
func (s *claimSync) markLost(ctx context.Context, claim *v1.PersistentVolumeClaim, why, message string) error {
	s.endWait(store.NameOf(claim))
	if claim.Status.Phase == v1.ClaimLost {
		return s.binder.ProtectClaim(ctx, claim)
	}
	changed := claim.DeepCopy()
	bind.WithoutVolume(changed, v1.ClaimLost)
	reason{reason: why, message: message}.writeTo(changed)
	if _, err := s.binder.UpdateClaim(ctx, changed); err != nil {
		return err
	}
	s.events.Eventf(claim, v1.EventTypeWarning, why, "%s", message)
	return nil
}

// syncDeleted ends the filling and the provisioning of a claim that is deleted before it was bound. Only a completed
// provisioning shows whether storage exists. The volume is then released, and reclaimed when the claim is gone.
func (s *claimSync) syncDeleted(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	s.endWait(store.NameOf(claim))
	if !slices.Contains(claim.Finalizers, objects.FinalizerProvisioning) {
		return s.unprotect(ctx, claim)
	}
	made, err := s.provisioning.provisioned(ctx, claim)
	if err != nil {
		return err
	}
	if err := s.populating.endOf(ctx, claim, made); err != nil {
		return err
	}
	if made == nil {
		if err := s.provisioning.finish(ctx, claim); err != nil {
			return err
		}
	}
	changed := claim.DeepCopy()
	objects.DropFinalizer(&changed.ObjectMeta, objects.FinalizerProvisioning)
	updated, err := s.binder.UpdateClaim(ctx, changed)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.unprotect(ctx, updated)
}

// unprotect removes the finalizer of a claim that is being deleted, once nothing uses the claim.
func (s *claimSync) unprotect(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	if !slices.Contains(claim.Finalizers, objects.FinalizerClaimProtection) {
		return nil
	}
	used, err := s.users.Claim(ctx, claim)
	if err != nil {
		return err
	}
	if used.By != "" {
		return used.Err
	}
	s.recordUncertainAttributes(claim)
	changed := claim.DeepCopy()
	objects.DropFinalizer(&changed.ObjectMeta, objects.FinalizerClaimProtection)
	if _, err := s.binder.UpdateClaim(ctx, changed); err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return nil
}

// recordUncertainAttributes writes an event of a volume that stays when its claim goes, if the claim goes while the volume may have got the
// attributes of another class. The volume names its former class, and nothing modifies a volume without a claim.
func (s *claimSync) recordUncertainAttributes(claim *v1.PersistentVolumeClaim) {
	pv, there := s.mirrors.volume(claim.Spec.VolumeName)
	if !there || !objects.OwnedBy(pv, claim) || pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete ||
		!operationexecutor.IsModificationUncertain(claim) {
		return
	}
	s.events.Eventf(pv, v1.EventTypeWarning, operationexecutor.ReasonVolumeModifyFailed,
		"claim %q was deleted while the volume was modified: the volume may have attributes of class %q, and its spec names class %q",
		store.NameOf(claim), claim.Status.ModifyVolumeStatus.TargetVolumeAttributesClassName, objects.Deref(pv.Spec.VolumeAttributesClassName))
}
