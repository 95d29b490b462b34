package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"maps"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// This file makes the claims of generic ephemeral volumes, and deletes them when their pods are gone.

// AnnMadeForPod is on a claim that was made here for one pod; its value is the pod's UID. Such a claim goes with its pod.
const AnnMadeForPod = "volumekit.io/made-for-pod"

// ReasonFailedClaim is the reason of the event of a pod whose ephemeral volume can have no claim.
const ReasonFailedClaim = "FailedClaim"

func hasEphemeral(pod *v1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Ephemeral != nil {
			return true
		}
	}
	return false
}

// syncPod makes the claims that a pod lacks.
func (c *Controller) syncPod(ctx context.Context, name types.NamespacedName) error {
	pod, there := c.pods.Get(name)
	if !there || pod.DeletionTimestamp != nil || volume.IsPodTerminated(pod) {
		return nil
	}
	var errs []error
	for i := range pod.Spec.Volumes {
		if vol := &pod.Spec.Volumes[i]; vol.Ephemeral != nil && vol.Ephemeral.VolumeClaimTemplate != nil {
			errs = append(errs, c.makeClaim(ctx, pod, vol))
		}
	}
	return errors.Join(errs...)
}

// makeClaim makes the claim of an ephemeral volume, unless it is there.
func (c *Controller) makeClaim(ctx context.Context, pod *v1.Pod, vol *v1.Volume) error {
	ref, _ := volume.ClaimOfVolume(pod, vol)
	claim, there := c.claims.Get(ref.Name)
	if !there {
		made, err := store.Create(ctx, c.store, ephemeralClaim(pod, vol, ref.Name))
		switch {
		case err == nil:
			c.claims.Put(made)
			return nil
		case !errors.Is(err, store.ErrAlreadyExists):
			c.options.Events.Eventf(pod, v1.EventTypeWarning, ReasonFailedClaim, "the claim of volume %q cannot be made: %v", vol.Name, err)
			return fmt.Errorf("claim %q for pod %q: %w", ref.Name, store.NameOf(pod), err)
		}
		if claim, err = store.Get[*v1.PersistentVolumeClaim](ctx, c.store, ref.Name.Namespace, ref.Name.Name); err != nil {
			return err
		}
	}
	if ref.OwnedBy(claim, pod) {
		return nil
	}
	// One that was made for an earlier pod of the name goes with that one. Its end wakes the pod.
	if claim.Annotations[AnnMadeForPod] == "" {
		c.options.Events.Eventf(pod, v1.EventTypeWarning, ReasonFailedClaim,
			"claim %q was not made for this pod: delete it or rename volume %q", ref.Name, vol.Name)
	}
	return awaitChange(c.claims, claim)
}

func ephemeralClaim(pod *v1.Pod, vol *v1.Volume, name types.NamespacedName) *v1.PersistentVolumeClaim {
	template := vol.Ephemeral.VolumeClaimTemplate
	yes := true
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: name.Namespace, Name: name.Name,
			Labels: maps.Clone(template.Labels), Annotations: maps.Clone(template.Annotations),
			Finalizers: []string{FinalizerClaimProtection},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: store.Pods.GroupVersion().String(), Kind: store.Pods.Kind,
				Name: pod.Name, UID: pod.UID, Controller: &yes, BlockOwnerDeletion: &yes,
			}},
		},
		Spec: *template.Spec.DeepCopy(),
	}
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, AnnMadeForPod, string(pod.UID))
	return claim
}

func isOwnedByPod(claim *v1.PersistentVolumeClaim) bool {
	return claim.Annotations[AnnMadeForPod] != ""
}

// isOrphan reports whether a claim was made here for a pod that is gone. Memory that lacks the pod is not believed: the error is
// then that of awaitChange.
func (c *Controller) isOrphan(ctx context.Context, claim *v1.PersistentVolumeClaim) (bool, error) {
	owner := metav1.GetControllerOf(claim)
	if !isOwnedByPod(claim) || claim.DeletionTimestamp != nil || owner == nil || owner.Kind != store.Pods.Kind {
		return false, nil
	}
	if pod, there := c.pods.Get(types.NamespacedName{Namespace: claim.Namespace, Name: owner.Name}); there && pod.UID == owner.UID {
		return false, nil
	}
	pod, err := store.Get[*v1.Pod](ctx, c.store, claim.Namespace, owner.Name)
	if errors.Is(err, store.ErrNotFound) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("the pod of claim %q: %w", store.NameOf(claim), err)
	}
	if pod.UID != owner.UID {
		return true, nil
	}
	return false, awaitChange(c.pods, pod)
}

// collect deletes a claim whose pod is gone.
func (c *Controller) collect(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	err := store.Delete(ctx, c.store, claim)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrConflict) {
		return nil
	}
	return err
}

// wakeOwner has the pod looked at for which a claim is, or was, to be made.
func (c *Controller) wakeOwner(name types.NamespacedName) {
	for _, pod := range c.podsOf.Get(name) {
		if hasEphemeral(pod) {
			c.work.add(podItem, store.NameOf(pod))
		}
	}
}
