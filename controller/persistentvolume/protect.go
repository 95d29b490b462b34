package persistentvolume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// This file keeps claims that pods use, and volumes that claims, pods or nodes use, from going away beneath them.

// podChanged is called when a pod is new, changed or gone. It wakes what waits for the pod: claims and volumes that cannot go as
// long as it uses them, claims that wait until it has a node, and itself when claims are to be made for it.
func (c *Controller) podChanged(pod *v1.Pod) {
	if hasEphemeral(pod) {
		c.work.add(podItem, store.NameOf(pod))
	}
	for _, name := range volume.ClaimsOfPod(pod) {
		claim, there := c.claims.Get(name)
		if !there || claim.DeletionTimestamp != nil || claim.Spec.VolumeName == "" || isOwnedByPod(claim) {
			c.work.add(claimItem, name)
		}
		for _, pv := range c.volumesOf.Get(name) {
			if pv.Status.Phase == v1.VolumeReleased || pv.Status.Phase == v1.VolumeFailed {
				c.work.add(volumeItem, store.NameOf(pv))
			}
		}
	}
}

// attachmentChanged is called when an attachment is new, changed or gone: a volume may wait until it is detached.
func (c *Controller) attachmentChanged(at *storagev1.VolumeAttachment) {
	if name := at.Spec.Source.PersistentVolumeName; name != nil {
		c.work.add(volumeItem, volumeKey(*name))
	}
}

// protect adds our finalizer to an object that is not being deleted.
func protect(meta *metav1.ObjectMeta, finalizer string) {
	if meta.DeletionTimestamp == nil && !slices.Contains(meta.Finalizers, finalizer) {
		meta.Finalizers = append(meta.Finalizers, finalizer)
	}
}

// unprotected reports whether an object that is not being deleted lacks our finalizer.
func unprotected(meta *metav1.ObjectMeta, finalizer string) bool {
	return meta.DeletionTimestamp == nil && !slices.Contains(meta.Finalizers, finalizer)
}

// protectClaim writes our finalizer to a claim of which nothing else changes.
func (c *Controller) protectClaim(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	if !unprotected(&claim.ObjectMeta, FinalizerClaimProtection) {
		return nil
	}
	_, err := c.updateClaim(ctx, claim.DeepCopy())
	return err
}

// unprotectClaim lets a claim go that is being deleted, as soon as the store has no pod that uses it and nobody has its volume
// mounted.
func (c *Controller) unprotectClaim(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	if !slices.Contains(claim.Finalizers, FinalizerClaimProtection) {
		return nil
	}
	name := store.NameOf(claim)
	by := item{claimItem, name}
	user, err := c.userOf(by, question{claim.UID, name}, func(pod *v1.Pod) bool { return mayUse(pod, claim) })
	if err != nil {
		return err
	}
	if user != nil {
		return awaitChange(c.pods, user)
	}
	if pv, there := c.volumes.Get(volumeKey(claim.Spec.VolumeName)); there && ownedBy(pv, claim) && c.mountedBy(ctx, by, pv) != "" {
		return nil
	}
	changed := claim.DeepCopy()
	dropFinalizer(&changed.ObjectMeta, FinalizerClaimProtection)
	if _, err := c.updateClaim(ctx, changed); err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return nil
}

// mayUse reports whether a pod refers to a claim otherwise than as one that was to be made for it and was not.
func mayUse(pod *v1.Pod, claim *v1.PersistentVolumeClaim) bool {
	for i := range pod.Spec.Volumes {
		ref, ok := volume.ClaimOfVolume(pod, &pod.Spec.Volumes[i])
		if ok && ref.Name == store.NameOf(claim) && ref.OwnedBy(claim, pod) {
			return true
		}
	}
	return false
}

// userOf returns a pod that uses, or may use, the claim that is asked about, or nil: one whose object is there and that counts.
// Neither its node name nor its status is asked. Both may be missing, old or wrong, and the pod may run all the same. Memory is
// asked first, and that nobody uses the claim is believed by the store alone: the error is then errAsked, and the item is looked at
// again with the answer.
func (c *Controller) userOf(by item, q question, counts func(pod *v1.Pod) bool) (*v1.Pod, error) {
	known := c.podsOf.Get(q.claim)
	if at := slices.IndexFunc(known, counts); at >= 0 {
		return known[at], nil
	}
	pods, answered := c.users.take(by, q)
	if !answered {
		c.users.ask(by, q)
		c.work.add(usersItem, types.NamespacedName{Namespace: q.claim.Namespace})
		return nil, errAsked
	}
	if at := slices.IndexFunc(pods, counts); at >= 0 {
		return pods[at], nil
	}
	return nil, nil
}

// attachmentOf returns an attachment of a volume as the store has it, or nil.
func (c *Controller) attachmentOf(ctx context.Context, pv *v1.PersistentVolume) (*storagev1.VolumeAttachment, error) {
	attachments, err := c.liveAttachments.all(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("the attachments of volume %q: %w", pv.Name, err)
	}
	for _, at := range attachments {
		if name := at.Spec.Source.PersistentVolumeName; name != nil && *name == pv.Name {
			return at, nil
		}
	}
	return nil, nil
}

// podUsing returns a pod that uses, or may use, a volume whose claim is gone, or nil. Where another claim has the name by now, that is
// what pods mount from now on; what they have mounted before is in the report of the one node, where it is asked.
func (c *Controller) podUsing(by item, pv *v1.PersistentVolume) (*v1.Pod, error) {
	next, there := c.claims.Get(claimNameOf(pv))
	if there && c.options.NodeName != "" && c.options.Mounts != nil {
		return nil, nil
	}
	return c.userOf(by, question{pv.UID, claimNameOf(pv)}, func(pod *v1.Pod) bool {
		// The pods of another claim that has the name of the old one do not count.
		return !there || !metav1.IsControlledBy(next, pod) && !next.CreationTimestamp.Before(&pod.CreationTimestamp)
	})
}

// usedByPod says that a pod uses a volume, and on which node as far as that is known.
func (c *Controller) usedByPod(pod *v1.Pod) string {
	node := cmp.Or(pod.Spec.NodeName, string(c.options.NodeName))
	if node == "" {
		return fmt.Sprintf("pod %q, which names no node, may use it", store.NameOf(pod))
	}
	return fmt.Sprintf("pod %q on node %q may use it", store.NameOf(pod), node)
}

func attachedTo(at *storagev1.VolumeAttachment) string {
	return fmt.Sprintf("it is attached to node %q, or may be", at.Spec.NodeName)
}

// firstConsumer returns the pod that decides where a claim is to be had: of those that have a node the oldest, or one that has
// none yet; nil when no pod uses the claim.
func (c *Controller) firstConsumer(claim *v1.PersistentVolumeClaim) *v1.Pod {
	pods := slices.DeleteFunc(c.podsOf.Get(store.NameOf(claim)), volume.IsPodTerminated)
	if len(pods) == 0 {
		return nil
	}
	return slices.MinFunc(pods, func(a, b *v1.Pod) int {
		return cmp.Or(
			-cmp.Compare(min(1, len(a.Spec.NodeName)), min(1, len(b.Spec.NodeName))),
			a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name),
		)
	})
}
