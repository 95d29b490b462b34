// Package ephemeral creates the claims of generic ephemeral volumes, and deletes them when their pods are gone.
package ephemeral

import (
	"context"
	"errors"
	"fmt"
	"maps"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// Controller creates and deletes the claims of ephemeral volumes. Make it with [New]. Its methods may be called from
// several goroutines at once.
type Controller struct {
	store  store.Store
	events volume.EventRecorder
	claims *store.Mirror[*v1.PersistentVolumeClaim]
	pods   *store.Mirror[*v1.Pod]
}

// New returns a Controller of the pods and claims in s; claims and pods read their mirrors.
func New(
	s store.Store, events volume.EventRecorder, claims *store.Mirror[*v1.PersistentVolumeClaim], pods *store.Mirror[*v1.Pod],
) *Controller {
	return &Controller{store: s, events: events, claims: claims, pods: pods}
}

// HasVolume reports whether a pod has an ephemeral volume.
func HasVolume(pod *v1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Ephemeral != nil {
			return true
		}
	}
	return false
}

// IsMadeForPod reports whether this controller created the claim for a pod.
func IsMadeForPod(claim *v1.PersistentVolumeClaim) bool {
	return claim.Annotations[objects.AnnMadeForPod] != ""
}

// MakeClaims creates the missing claims of a pod.
func (c *Controller) MakeClaims(ctx context.Context, podName types.NamespacedName) error {
	pod, there := c.pods.Get(podName)
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

// makeClaim creates the claim of an ephemeral volume, unless it exists.
func (c *Controller) makeClaim(ctx context.Context, pod *v1.Pod, vol *v1.Volume) error {
	ref, _ := volume.ClaimOfVolume(pod, vol)
	claim, there := c.claims.Get(ref.Name)
	if !there {
		made, err := store.Create(ctx, c.store, newClaim(pod, vol, ref.Name))
		switch {
		case err == nil:
			c.claims.Put(made)
			return nil
		case !errors.Is(err, store.ErrAlreadyExists):
			c.events.Eventf(pod, v1.EventTypeWarning, objects.ReasonFailedClaim, "the claim of volume %q cannot be made: %v", vol.Name, err)
			return fmt.Errorf("claim %q for pod %q: %w", ref.Name, store.NameOf(pod), err)
		}
		if claim, err = store.Get[*v1.PersistentVolumeClaim](ctx, c.store, ref.Name.Namespace, ref.Name.Name); err != nil {
			return err
		}
	}
	if ref.OwnedBy(claim, pod) {
		return nil
	}
	// The claim of an earlier pod of the same name is deleted with that pod. Its deletion queues this pod.
	if !IsMadeForPod(claim) {
		c.events.Eventf(pod, v1.EventTypeWarning, objects.ReasonFailedClaim,
			"claim %q was not made for this pod: delete it or rename volume %q", ref.Name, vol.Name)
	}
	return work.AwaitChange(c.claims, claim)
}

func newClaim(pod *v1.Pod, vol *v1.Volume, name types.NamespacedName) *v1.PersistentVolumeClaim {
	template := vol.Ephemeral.VolumeClaimTemplate
	yes := true
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: name.Namespace, Name: name.Name,
			Labels: maps.Clone(template.Labels), Annotations: maps.Clone(template.Annotations),
			Finalizers: []string{objects.FinalizerClaimProtection},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: store.Pods.GroupVersion().String(), Kind: store.Pods.Kind,
				Name: pod.Name, UID: pod.UID, Controller: &yes, BlockOwnerDeletion: &yes,
			}},
		},
		Spec: *template.Spec.DeepCopy(),
	}
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, objects.AnnMadeForPod, string(pod.UID))
	return claim
}

// IsOrphan reports whether this controller created the claim for a pod that is gone. Only the store proves that the pod
// is gone. If the store has a pod that the mirror lacks, the error is that of [work.AwaitChange].
func (c *Controller) IsOrphan(ctx context.Context, claim *v1.PersistentVolumeClaim) (bool, error) {
	owner := metav1.GetControllerOf(claim)
	if !IsMadeForPod(claim) || claim.DeletionTimestamp != nil || owner == nil || owner.Kind != store.Pods.Kind {
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
	return false, work.AwaitChange(c.pods, pod)
}

// Delete deletes a claim whose pod is gone.
func (c *Controller) Delete(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	err := store.Delete(ctx, c.store, claim)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrConflict) {
		return nil
	}
	return err
}
