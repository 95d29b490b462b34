package attachdetach_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// This file is what must always be in the simulation, and what must be in the end.

// all returns the objects of a kind as they are.
func all[T store.Object](ctx context.Context, c *cluster) []T {
	objects, _, err := store.ListOf[T](ctx, c.world, "")
	if err != nil {
		c.violate("%v", err)
	}
	return objects
}

// check looks for what must never be, whatever happens.
func (c *cluster) check(ctx context.Context) {
	if c.bugs.scheduled {
		c.checkScheduled(ctx)
	}
	now := time.Now()
	for _, node := range nodeNames {
		for handle := range c.wantedOn(ctx, node) {
			c.mu.Lock()
			c.wantedAt[handle+" "+node] = now
			c.mu.Unlock()
		}
	}
	volumes := map[string]*v1.PersistentVolume{}
	for _, pv := range all[*v1.PersistentVolume](ctx, c) {
		volumes[pv.Name] = pv
	}
	owners := map[string]string{}
	for _, claim := range all[*v1.PersistentVolumeClaim](ctx, c) {
		if claim.Status.Phase == v1.ClaimLost {
			c.violate("claim %s has lost its volume", claim.Name)
		}
		if claim.Status.Phase != v1.ClaimBound {
			continue
		}
		pv := volumes[claim.Spec.VolumeName]
		switch {
		case pv == nil || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID:
			c.violate("claim %s with UID %s is bound to volume %s, which is another's", claim.Name, claim.UID, claim.Spec.VolumeName)
			continue
		case owners[pv.Name] != "":
			c.violate("volume %s belongs to claims %s and %s", pv.Name, claim.Name, owners[pv.Name])
		case !slices.Contains(c.backend.Handles(), pv.Spec.CSI.VolumeHandle):
			c.violate("the storage of claim %s is gone", claim.Name)
		}
		owners[pv.Name] = claim.Name
		c.checkSizes(claim, pv)
	}
}

// checkSizes looks at the account of a claim's size: nothing shrinks, no status has more than the storage, and no more is
// taken of the storage than was written down, which is what a quota counts.
func (c *cluster) checkSizes(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
	has, allocated := bytes(claim.Status.Capacity), bytes(claim.Status.AllocatedResources)
	real, _ := c.backend.Size(pv.Spec.CSI.VolumeHandle)
	c.mu.Lock()
	most, filesystem, owner := c.capacities[claim.UID], c.filesystems[pv.Spec.CSI.VolumeHandle], c.owners[pv.Spec.CSI.VolumeHandle]
	c.capacities[claim.UID] = max(most, has)
	if _, known := c.found[claim.UID]; !known {
		c.found[claim.UID] = real
	}
	found, grownFor := c.found[claim.UID], c.grownFor[pv.Spec.CSI.VolumeHandle]
	c.mu.Unlock()
	switch {
	case has < most:
		c.violate("claim %s had %d and is said to have %d", claim.Name, most, has)
	case has > real:
		c.violate("claim %s is said to have %d and its storage has %d", claim.Name, has, real)
	case owner == claim.UID && has > filesystem:
		c.violate("claim %s is said to have %d and its filesystem has %d", claim.Name, has, filesystem)
	case bytes(pv.Spec.Capacity) > real:
		c.violate("volume %s is said to have %d and has %d", pv.Name, bytes(pv.Spec.Capacity), real)
	case real > max(has, allocated, found) && grownFor == claim.UID:
		c.violate("the storage of claim %s has %d, and no more than %d are written down", claim.Name, real, max(has, allocated))
	}
}

func bytes(list v1.ResourceList) int64 {
	size := list[v1.ResourceStorage]
	return size.Value()
}

// settle lets the faults stop, and looks whether everything becomes what it should be, and stays so.
func (c *cluster) settle(ctx context.Context, processes []*process) {
	c.mu.Lock()
	c.calm = true
	c.mu.Unlock()
	c.note("the faults stop")
	for _, p := range processes {
		p.network.mend()
	}
	for _, name := range nodeNames {
		c.release(ctx, name)
		c.heal(ctx, name)
	}
	if c.bugs.scheduled {
		c.mendClass(ctx)
		defer c.judgeFrom(ctx)()
	}
	var wrong []string
	for good, rounds := 0, 0; good < 5 && rounds < 150 && c.isWhole(); rounds++ {
		c.moderate(ctx)
		for _, name := range nodeNames {
			c.agent(ctx, name)
		}
		for _, p := range processes {
			p.network.rest()
		}
		c.turns.Sleep(longestStep)
		c.check(ctx)
		if wrong = c.unsettled(ctx); len(wrong) == 0 {
			good++
		} else {
			good = 0
		}
	}
	for _, what := range wrong {
		c.violate("in the end %s", what)
	}
}

// moderate has claims ask for nothing that there cannot be.
func (c *cluster) moderate(ctx context.Context) {
	for _, claim := range all[*v1.PersistentVolumeClaim](ctx, c) {
		tooLarge := bytes(claim.Spec.Resources.Requests) > largest
		if tooLarge {
			claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(largest/2, resource.BinarySI)}
		}
		class := claim.Spec.VolumeAttributesClassName
		impossible := class != nil && *class != "gold" && *class != "silver"
		if impossible {
			claim.Spec.VolumeAttributesClassName = &attributesNames[0]
		}
		if tooLarge || impossible {
			_, _ = store.Update(ctx, c.world, claim) // If another writer was first, the next time.
		}
	}
}

// unsettled returns what is not as it should be in the end.
func (c *cluster) unsettled(ctx context.Context) (wrong []string) {
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	pods := all[*v1.Pod](ctx, c)
	for _, pod := range pods {
		if pod.Spec.NodeName == "" && c.unsettledPod(pod) != "" {
			say("pod %s has no node and could have %s", pod.Name, c.unsettledPod(pod))
		}
	}
	wanted := map[string][]string{}
	for _, node := range nodeNames {
		for handle := range c.wantedOn(ctx, node) {
			wanted[handle] = append(wanted[handle], node)
		}
	}
	for _, handle := range slices.Sorted(maps.Keys(wanted)) {
		nodes := wanted[handle]
		if mounted := c.mountsOf(handle); (len(mounted) != 1 || !slices.Contains(nodes, mounted[0])) && !c.isOverrun(nodes) {
			say("volume %s is mounted on %v and wanted on %v", handle, mounted, nodes)
		}
	}
	volumes := map[string]*v1.PersistentVolume{}
	for _, pv := range all[*v1.PersistentVolume](ctx, c) {
		volumes[pv.Spec.CSI.VolumeHandle] = pv
	}
	attached := 0
	for _, handle := range c.backend.Handles() {
		at := c.backend.Nodes(handle)
		attached += len(at)
		if pv := volumes[handle]; wanted[handle] == nil && len(at) > 0 && (pv == nil || !c.isAwaited(pv, pods)) {
			say("volume %s is attached to %v and wanted nowhere", handle, at)
		}
		if _, manual := policyOf[handle]; !manual && volumes[handle] == nil {
			say("storage %s has no volume", handle)
		}
	}
	if records := all[*storagev1.VolumeAttachment](ctx, c); len(records) != attached {
		say("%d attachments are on record, and there are %d", len(records), attached)
	}
	for _, handle := range slices.Sorted(maps.Keys(volumes)) {
		pv := volumes[handle]
		settled := pv.Status.Phase == v1.VolumeBound || pv.Status.Phase == v1.VolumeAvailable
		if !settled && policyOf[pv.Name] != v1.PersistentVolumeReclaimRetain && !c.isAwaited(pv, pods) {
			say("volume %s is %s: %s", pv.Name, pv.Status.Phase, pv.Status.Message)
		}
	}
	for _, claim := range all[*v1.PersistentVolumeClaim](ctx, c) {
		c.unsettledClaim(claim, pods, volumes, say)
	}
	return wrong
}

// isAwaited reports whether a pod waits for a claim that had the volume once and is gone: it may still have the volume.
func (c *cluster) isAwaited(pv *v1.PersistentVolume, pods []*v1.Pod) bool {
	if pv.Spec.ClaimRef == nil {
		return false
	}
	claim := types.NamespacedName{Namespace: pv.Spec.ClaimRef.Namespace, Name: pv.Spec.ClaimRef.Name}
	return slices.ContainsFunc(pods, func(pod *v1.Pod) bool { return slices.Contains(volume.ClaimsOfPod(pod), claim) })
}

func (c *cluster) unsettledClaim(
	claim *v1.PersistentVolumeClaim, pods []*v1.Pod, volumes map[string]*v1.PersistentVolume, say func(format string, args ...any),
) {
	used := slices.ContainsFunc(pods, func(pod *v1.Pod) bool { return slices.Contains(volume.ClaimsOfPod(pod), store.NameOf(claim)) })
	placed := slices.ContainsFunc(pods, func(pod *v1.Pod) bool {
		return pod.Spec.NodeName != "" && slices.Contains(volume.ClaimsOfPod(pod), store.NameOf(claim))
	})
	bound, dies := claim.Status.Phase == v1.ClaimBound, claim.DeletionTimestamp != nil
	switch {
	case !used && dies:
		say("claim %s is unused and stays: %v", claim.Name, claim.Finalizers)
	case !used && claim.Annotations["volumekit.io/made-for-pod"] != "":
		say("claim %s is there without its pod", claim.Name)
	case !bound && !dies && (*claim.Spec.StorageClassName == "fast" || placed && *claim.Spec.StorageClassName == "late"):
		say("claim %s is %s", claim.Name, claim.Status.Phase)
	}
	pv := volumes[claim.Spec.VolumeName] // Handles and names are the same here.
	if !bound || pv == nil || dies {
		return
	}
	if c.bugs.scheduled && c.unsettledAttributes(claim, pv.Name) {
		say("claim %s asks for attributes that it has not: %v", claim.Name, claim.Status.ModifyVolumeStatus)
	}
	want, has, status := bytes(claim.Spec.Resources.Requests), bytes(claim.Status.Capacity), claim.Status.AllocatedResourceStatuses[v1.ResourceStorage]
	if status == v1.PersistentVolumeClaimNodeResizePending && len(c.mountsOf(pv.Name)) == 0 {
		return // It goes on when a node has it.
	}
	if has < want || status != "" {
		say("claim %s has %d of volume %s with %d and asks for %d: %s", claim.Name, has, pv.Name, bytes(pv.Spec.Capacity), want, status)
	}
}
