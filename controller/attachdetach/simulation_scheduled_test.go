package attachdetach_test

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/controller/scheduling"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// This file is what must always be where schedulers place the pods, and what must be in the end there.

// checkScheduled looks for what must never be, whatever happens.
func (c *cluster) checkScheduled(ctx context.Context) {
	volumes, claims := map[string]*v1.PersistentVolume{}, map[types.NamespacedName]*v1.PersistentVolumeClaim{}
	for _, pv := range all[*v1.PersistentVolume](ctx, c) {
		volumes[pv.Name] = pv
	}
	for _, claim := range all[*v1.PersistentVolumeClaim](ctx, c) {
		claims[store.NameOf(claim)] = claim
		if pv := volumes[claim.Spec.VolumeName]; pv != nil && claim.Status.Phase == v1.ClaimBound {
			c.checkBound(claim, pv.Spec.CSI.VolumeHandle)
		}
	}
	attached := map[string]map[string]bool{}
	for _, pod := range all[*v1.Pod](ctx, c) {
		node := pod.Spec.NodeName
		if was := c.placed[pod.UID]; was != "" && was != node {
			c.violate("pod %s is on %s, and was placed on %s", pod.Name, node, was)
		}
		if node == "" {
			continue
		}
		c.placed[pod.UID] = node
		if attached[node] == nil {
			attached[node] = map[string]bool{}
		}
		for i := range pod.Spec.Volumes {
			c.checkPlaced(pod, &pod.Spec.Volumes[i], claims, volumes, attached[node])
		}
	}
	for node, handles := range attached {
		if c.oneScheduler && len(handles) > limits[node] {
			c.violate("the pods on %s use %v, and it can attach %d", node, slices.Sorted(maps.Keys(handles)), limits[node])
		}
	}
}

// checkPlaced looks at one volume of a pod that has a node. A claim that was deleted while the pod had no node was not protected.
func (c *cluster) checkPlaced(
	pod *v1.Pod, vol *v1.Volume, claims map[types.NamespacedName]*v1.PersistentVolumeClaim, volumes map[string]*v1.PersistentVolume, attached map[string]bool,
) {
	ref, _ := volume.ClaimOfVolume(pod, vol)
	claim := claims[ref.Name]
	if claim == nil || claim.DeletionTimestamp != nil {
		return
	}
	pv := volumes[claim.Spec.VolumeName]
	if pv == nil || !objects.OwnedBy(pv, claim) {
		c.violate("pod %s is on %s, and its claim %s is not bound", pod.Name, pod.Spec.NodeName, claim.Name)
		return
	}
	c.mu.Lock()
	zone := c.zones[pv.Spec.CSI.VolumeHandle]
	c.mu.Unlock()
	if zone != zoneOfNode[pod.Spec.NodeName] {
		c.violate("pod %s is on %s, and its volume %s is in zone %s", pod.Name, pod.Spec.NodeName, pv.Name, zone)
	}
	attached[pv.Spec.CSI.VolumeHandle] = true
	c.count("placed")
}

// checkBound looks at the content of a claim's volume, and whether it has the attributes that the claim says it has.
func (c *cluster) checkBound(claim *v1.PersistentVolumeClaim, handle string) {
	if why := c.whyUnfilled(claim, handle); why != "" {
		c.violate("claim %s is bound to volume %s, which %s", claim.Name, handle, why)
	}
	class := claim.Status.CurrentVolumeAttributesClassName
	if class == nil || claim.Status.ModifyVolumeStatus != nil {
		return
	}
	if has := c.backend.Attributes(handle); !maps.Equal(has, c.attributes(*class)) {
		c.violate("claim %s is said to have the attributes of %s, and volume %s has %v", claim.Name, *class, handle, has)
	}
}

// judgeFrom has a scheduler follow the store that sees everything at once, until stop is called.
func (c *cluster) judgeFrom(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	c.judge = scheduling.New(c.memory, scheduling.Options{Mirrors: store.MirrorOptions{Jitter: -1}})
	var judging sync.WaitGroup
	judging.Go(func() { _ = c.judge.Run(ctx) })
	return func() {
		cancel()
		judging.Wait()
	}
}

// unsettledPod returns the node that a pod could have in the end and has not, "" for none.
func (c *cluster) unsettledPod(pod *v1.Pod) string {
	result, err := c.judge.Find(pod)
	if err != nil {
		return ""
	}
	nodes := slices.Sorted(result.Nodes())
	if len(nodes) == 0 {
		return ""
	}
	return nodes[0]
}

// isOverrun reports whether nodes can attach no more volumes, because two schedulers at once have placed too many pods there.
func (c *cluster) isOverrun(nodes []string) bool {
	if !c.bugs.scheduled || c.oneScheduler {
		return false
	}
	attached := map[string]int{}
	for _, handle := range c.backend.Handles() {
		for _, node := range c.backend.Nodes(handle) {
			attached[string(node)]++
		}
	}
	return !slices.ContainsFunc(nodes, func(node string) bool { return attached[node] < limits[node] })
}

// unsettledAttributes returns whether a claim has not the attributes that it asks for.
func (c *cluster) unsettledAttributes(claim *v1.PersistentVolumeClaim, handle string) bool {
	wants, has := claim.Spec.VolumeAttributesClassName, claim.Status.CurrentVolumeAttributesClassName
	if wants == nil {
		return claim.Status.ModifyVolumeStatus != nil
	}
	return has == nil || *has != *wants || claim.Status.ModifyVolumeStatus != nil || !maps.Equal(c.backend.Attributes(handle), c.attributes(*wants))
}

// plantedInSchedulers are bugs that are found where schedulers place the pods.
var plantedInSchedulers = map[string]bugs{
	"a scheduler does not know how many volumes a node can attach": {rare: true, finds: "it can attach", part: "scheduling", read: hide[*storagev1.CSINode]},
	"a scheduler does not know where a volume is": {finds: "is in zone", part: "scheduling", read: on(func(_ *cluster, pv *v1.PersistentVolume) {
		pv.Spec.NodeAffinity = nil
	})},
	"a scheduler places a pod that has a node": {rare: true, finds: "was placed on", part: "scheduling", read: on(func(c *cluster, pod *v1.Pod) {
		if c.dice(4) == 0 {
			pod.Spec.NodeName = ""
		}
	})},
	"a scheduler does not wait until the claims are bound": {finds: "is not bound", noBind: true},
	"a volume counts as full when its filling has begun": {finds: "is bound to volume", part: "claims", read: on(func(_ *cluster, pv *v1.PersistentVolume) {
		if pv.Annotations[objects.AnnPopulating] != "" {
			pv.Annotations[objects.AnnPopulated] = "half"
		}
	})},
	"a claim says that it has attributes before its volume has them": {finds: "is said to have the attributes", part: "growth", write: on(func(_ *cluster, claim *v1.PersistentVolumeClaim) {
		if status := claim.Status.ModifyVolumeStatus; status != nil && status.Status == v1.PersistentVolumeClaimModifyVolumeInProgress {
			claim.Status.CurrentVolumeAttributesClassName, claim.Status.ModifyVolumeStatus = &status.TargetVolumeAttributesClassName, nil
		}
	})},
	"a modification is not on record": {rare: true, finds: "is said to have the attributes", part: "growth", write: func(_ *cluster, obj runtime.Object) runtime.Object {
		if claim, is := obj.(*v1.PersistentVolumeClaim); is && claim.Status.ModifyVolumeStatus != nil {
			claim.Status.ModifyVolumeStatus = nil
		}
		return obj
	}},
	"a modification and an expansion at once": {finds: "has two changes at once", twoExpanders: true},
}

// However schedulers, controllers, networks, nodes and storage fail, a pod has one node, where all its claims are bound and its
// volumes can be had; no node has more volumes than it can attach while one scheduler works at a time; no claim is bound to a volume
// that is not full, or says that it has attributes which its volume has not; and everything converges when the faults stop.
func TestScheduledClustersStayWhole(t *testing.T) {
	first, seeds := number(t, "CLUSTER_FIRST", 0), number(t, "CLUSTER_SEEDS", 6)
	counts := staysWhole(t, first, seeds, bugs{scheduled: true})
	happens := []string{"mount", "placed", "fill", "modify"}
	if seeds >= 60 {
		happens = append(happens, "placed anew", "expand", "delete")
	}
	for _, what := range happens {
		assert.NotZero(t, counts[what], "a simulation in which there is no %q shows nothing of it", what)
	}
}

// staysWhole fails unless nothing goes wrong in the clusters of all seeds. It returns what happened.
func staysWhole(t *testing.T, first, seeds uint64, world bugs) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for seed := first; seed < first+seeds; seed++ {
		c := simulate(t, seed, 250, world)
		for what, n := range c.counts {
			counts[what] += n
		}
		if len(c.violations) == 0 {
			continue
		}
		lines := c.trace
		if seeds == 1 {
			lines = c.steps.Lines() // With each turn.
		}
		for _, line := range lines {
			t.Log(line)
		}
		require.Empty(t, c.violations, "seed %d: CLUSTER_FIRST=%d CLUSTER_SEEDS=1 repeats it, and prints each turn", seed, seed)
	}
	t.Logf("%d seeds: %v", seeds, counts)
	return counts
}

// What is planted where schedulers place the pods is found there.
func TestTheSimulationFindsBugsOfPlacedPods(t *testing.T) {
	scheduled := map[string]bugs{}
	for name, bug := range plantedInSchedulers {
		bug.scheduled = true
		scheduled[name] = bug
	}
	findsBugs(t, scheduled)
}

// A seed stands for one run there, too.
func TestTheSameSeedPlacesPodsAlike(t *testing.T) {
	givesSameTrace(t, bugs{scheduled: true}, 1, 8)
}
