package persistentvolume

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/ephemeral"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// This file queues the items that depend on a changed object.

// claimChanged is called when a claim was created, changed or deleted.
func (c *Controller) claimChanged(claim *v1.PersistentVolumeClaim) {
	c.queue.Add(work.Claim, store.NameOf(claim))
	if claim.Spec.VolumeName != "" {
		c.queue.Add(work.Volume, objects.Named(claim.Spec.VolumeName))
	}
	if source := objects.ClaimToCopy(claim); source != "" { // Its deletion may wait until the copy is made.
		name := types.NamespacedName{Namespace: claim.Namespace, Name: source}
		if copied, there := c.mirrors.claims.Get(name); there && copied.DeletionTimestamp != nil {
			c.queue.Add(work.Claim, name)
		}
	}
	if claim.Status.Phase == v1.ClaimBound || claim.DeletionTimestamp != nil {
		c.sourceChanged(claim)
	}
	if now, there := c.mirrors.claims.Get(store.NameOf(claim)); there && now.UID == claim.UID {
		return
	}
	for _, pod := range c.mirrors.podsOf.Get(store.NameOf(claim)) {
		if ephemeral.HasVolume(pod) {
			c.queue.Add(work.Pod, store.NameOf(pod))
		}
	}
	for _, pv := range c.mirrors.volumesOf.Get(store.NameOf(claim)) {
		c.queue.Add(work.Volume, store.NameOf(pv))
	}
}

// sourceChanged is called when a claim is bound or being deleted. It wakes the claims that are to be copies of it. They may be in the
// back-off of an attempt at which it was not bound. An attempt that has begun had a source, and fails for another reason.
func (c *Controller) sourceChanged(claim *v1.PersistentVolumeClaim) {
	for _, toFill := range c.mirrors.copying.Get(store.NameOf(claim)) {
		if !slices.Contains(toFill.Finalizers, objects.FinalizerProvisioning) {
			c.queue.Retry(work.Item{Kind: work.Claim, Name: store.NameOf(toFill)})
		}
	}
}

// classChanged is called when a class was created, changed or deleted. It queues every claim without a volume: such a
// claim may wait for the class, or a worker may be about to find that it does.
func (c *Controller) classChanged(*storagev1.StorageClass) {
	for _, claim := range c.mirrors.claims.All() {
		if claim.Spec.VolumeName == "" {
			c.queue.Add(work.Claim, store.NameOf(claim))
		}
	}
}

// attributesChanged is called when a VolumeAttributesClass was created, changed or deleted. It queues every claim
// without a volume that names it.
func (c *Controller) attributesChanged(class *storagev1.VolumeAttributesClass) {
	for _, claim := range c.mirrors.claims.All() {
		if claim.Spec.VolumeName == "" && objects.Deref(claim.Spec.VolumeAttributesClassName) == class.Name {
			c.queue.Add(work.Claim, store.NameOf(claim))
		}
	}
}

// volumeChanged is called when a volume was created, changed or deleted.
func (c *Controller) volumeChanged(pv *v1.PersistentVolume) {
	c.matcher.Refresh(pv.Name)
	c.queue.Add(work.Volume, store.NameOf(pv))
	if pv.Spec.ClaimRef != nil {
		c.queue.Add(work.Claim, objects.ClaimNameOf(pv))
	}
	for _, claim := range c.mirrors.claimsNaming.Get(pv.Name) {
		c.queue.Add(work.Claim, store.NameOf(claim))
	}
	for _, storage := range objects.StoragesAround(pv) {
		for _, other := range c.mirrors.volumesWith.Get(storage) {
			if other.Name != pv.Name && other.Status.Phase == v1.VolumeReleased {
				c.queue.Add(work.Volume, store.NameOf(other)) // It may wait for pv.
			}
		}
	}
}

// podChanged is called when a pod was created, changed or deleted. It queues the claims and volumes whose deletion
// waits for the pod, the claims that wait for the pod's node, and the pod itself if it needs ephemeral claims.
func (c *Controller) podChanged(pod *v1.Pod) {
	if ephemeral.HasVolume(pod) {
		c.queue.Add(work.Pod, store.NameOf(pod))
	}
	for _, name := range volume.ClaimsOfPod(pod) {
		claim, there := c.mirrors.claims.Get(name)
		if !there || claim.DeletionTimestamp != nil || claim.Spec.VolumeName == "" || ephemeral.IsMadeForPod(claim) {
			c.queue.Add(work.Claim, name)
		}
		for _, pv := range c.mirrors.volumesOf.Get(name) {
			if pv.Status.Phase == v1.VolumeReleased || pv.Status.Phase == v1.VolumeFailed {
				c.queue.Add(work.Volume, store.NameOf(pv))
			}
		}
	}
}

// attachmentChanged is called when an attachment was created, changed or deleted. It queues the volume, which may wait
// for its detach.
func (c *Controller) attachmentChanged(at *storagev1.VolumeAttachment) {
	if name := at.Spec.Source.PersistentVolumeName; name != nil {
		c.queue.Add(work.Volume, objects.Named(*name))
	}
}

// snapshotChanged is called when a snapshot is ready to use, or gone. It wakes the claims that are to be restored from it. They may be
// in the back-off of an attempt at which it was not ready.
func (c *Controller) snapshotChanged(snapshot types.NamespacedName) {
	for _, claim := range c.mirrors.restoring.Get(snapshot) {
		c.queue.Retry(work.Item{Kind: work.Claim, Name: store.NameOf(claim)})
	}
}
