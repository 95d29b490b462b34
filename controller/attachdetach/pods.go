package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// podWants is what one pod wants: volumes on its node.
type podWants struct {
	uid     types.UID
	node    types.NodeName
	volumes map[v1.UniqueVolumeName]struct{}
}

func (c *Controller) podChanged(pod *v1.Pod) { c.dirtyPods.Add(store.NameOf(pod)) }

func (c *Controller) claimChanged(claim *v1.PersistentVolumeClaim) {
	for _, pod := range c.objects.podsOfClaim.Get(store.NameOf(claim)) {
		c.podChanged(pod)
	}
}

func (c *Controller) volumeChanged(pv *v1.PersistentVolume) {
	c.foreignOfVolumeChanged(pv)
	if ref := pv.Spec.ClaimRef; ref != nil {
		for _, pod := range c.objects.podsOfClaim.Get(types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}) {
			c.podChanged(pod)
		}
	}
}

// populateAll finds out what pods want, until ctx ends.
func (c *Controller) populateAll(ctx context.Context) {
	for {
		name, ok := c.dirtyPods.Get(ctx)
		if !ok {
			return
		}
		c.populate(name)
	}
}

// populate makes what a pod wants the desired state. A volume that cannot be found out is wanted as long as it was: unknown is
// not absent. It does no I/O; whatever it waits for makes the pod dirty again.
func (c *Controller) populate(name types.NamespacedName) {
	pod, there := c.objects.pods.Get(name)
	had, known := c.wants[name]
	if known && (!there || pod.UID != had.uid || types.NodeName(pod.Spec.NodeName) != had.node) {
		c.desired.DeletePod(volume.UniquePodName(had.uid))
		delete(c.wants, name)
		had = podWants{}
	}
	if !there || pod.Spec.NodeName == "" {
		return
	}
	if volume.IsPodTerminated(pod) || c.isOfOthers(types.NodeName(pod.Spec.NodeName)) {
		c.desired.DeletePod(volume.GetUniquePodName(pod))
		delete(c.wants, name)
		return
	}
	wants, err := c.desire(pod, had)
	if err != nil {
		c.options.Logger.Info("not every volume of a pod is known", "pod", name.String(), "err", err)
	}
	for _, gone := range slices.Sorted(maps.Keys(had.volumes)) {
		if _, still := wants.volumes[gone]; !still && err == nil {
			c.desired.DeletePodFromVolume(volume.GetUniquePodName(pod), gone, had.node)
		} else if !still {
			wants.volumes[gone] = struct{}{}
		}
	}
	c.wants[name] = wants
}

// isOfOthers reports whether a node's object says that its volumes are attached by somebody else. A node without an object may
// be this controller's: what its pods want they go on wanting.
func (c *Controller) isOfOthers(name types.NodeName) bool { return c.healthOf(name) == unmanaged }

// desire enters the volumes of a pod into the desired state. Those that cannot be found out are in the error.
func (c *Controller) desire(pod *v1.Pod, had podWants) (podWants, error) {
	node := types.NodeName(pod.Spec.NodeName)
	wants := podWants{uid: pod.UID, node: node, volumes: make(map[v1.UniqueVolumeName]struct{}, len(had.volumes))}
	var errs []error
	for i := range pod.Spec.Volumes {
		spec, err := c.specOf(pod, &pod.Spec.Volumes[i])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		name, err := c.desired.AddPod(pod, spec)
		switch {
		case errors.Is(err, volume.ErrNoPlugin): // It is none of this controller's.
		case err != nil:
			errs = append(errs, err)
		case name != "":
			wants.volumes[name] = struct{}{}
			c.actual.SetVolumeSpec(name, node, spec)
		}
	}
	return wants, errors.Join(errs...)
}

// specOf returns one volume of a pod, through its claim where it has one. UIDs are compared at each step.
func (c *Controller) specOf(pod *v1.Pod, vol *v1.Volume) (*volume.Spec, error) {
	ref, ok := volume.ClaimOfVolume(pod, vol)
	if !ok {
		return volume.NewSpecFromVolume(vol), nil
	}
	name := ref.Name
	claim, ok := c.objects.claims.Get(name)
	switch {
	case !ok:
		return nil, fmt.Errorf("claim %q: %w", name, store.ErrNotFound)
	case !ref.OwnedBy(claim, pod):
		return nil, fmt.Errorf("claim %q was not made for pod %q: delete it or rename the volume: %w", name, store.NameOf(pod), volume.ErrInvalid)
	case claim.Spec.VolumeName == "" || claim.Status.Phase != v1.ClaimBound:
		return nil, fmt.Errorf("claim %q is not bound to a volume yet", name)
	}
	pv, ok := c.objects.volumes.Get(types.NamespacedName{Name: claim.Spec.VolumeName})
	switch {
	case !ok:
		return nil, fmt.Errorf("PersistentVolume %q of claim %q: %w", claim.Spec.VolumeName, name, store.ErrNotFound)
	case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID:
		return nil, fmt.Errorf("PersistentVolume %q belongs to another claim than %q with UID %q: %w", pv.Name, name, claim.UID, store.ErrConflict)
	}
	return volume.NewSpecFromPersistentVolume(pv, ref.ReadOnly), nil
}
