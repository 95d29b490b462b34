package attachdetach_test

import (
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// This file is the nodes of the simulation, which use volumes as an agent does, are sick, are fenced off and are started again.

// want is what the pods of a node want of a volume.
type want struct {
	wanted bool
	claim  types.UID
}

// wantedOn returns the volumes of the pods on a node.
func (c *cluster) wantedOn(ctx context.Context, node string) map[string]want {
	wanted := map[string]want{}
	pods, _, err := store.ListOf[*v1.Pod](context.WithoutCancel(ctx), c.world, "")
	if err != nil {
		c.violate("%v", err)
	}
	for _, pod := range pods {
		if pod.Spec.NodeName != node {
			continue
		}
		for i := range pod.Spec.Volumes {
			if pv, claim := c.volumeOf(ctx, pod, &pod.Spec.Volumes[i]); pv != nil {
				wanted[pv.Spec.CSI.VolumeHandle] = want{wanted: true, claim: claim.UID}
			}
		}
	}
	return wanted
}

// volumeOf returns the volume of a pod and its claim; nil while the claim has none.
func (c *cluster) volumeOf(ctx context.Context, pod *v1.Pod, vol *v1.Volume) (*v1.PersistentVolume, *v1.PersistentVolumeClaim) {
	ctx = context.WithoutCancel(ctx)
	ref, _ := volume.ClaimOfVolume(pod, vol)
	claim, err := store.Get[*v1.PersistentVolumeClaim](ctx, c.world, ref.Name.Namespace, ref.Name.Name)
	if err != nil || !ref.OwnedBy(claim, pod) || claim.Status.Phase != v1.ClaimBound {
		return nil, nil
	}
	pv, err := store.Get[*v1.PersistentVolume](ctx, c.world, "", claim.Spec.VolumeName)
	if err != nil || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID {
		return nil, nil
	}
	return pv, claim
}

// agent does one round of what the volume manager of a node does, each step of which may be the last one of the round: lets go of
// what no pod wants, says what it uses, begins to use what it is told is attached, and lets that grow. One of a sick node
// lets go at most.
func (c *cluster) agent(ctx context.Context, name string) {
	node, err := store.Get[*v1.Node](ctx, c.world, "", name)
	if err != nil || isFenced(node) {
		return
	}
	isSick := !isReady(node)
	if isSick && c.luck(6) > 0 {
		return
	}
	wanted := c.wantedOn(ctx, name)
	var uses []string
	for _, handle := range c.handles() {
		has := c.isMounted(handle, name)
		switch {
		case has && wanted[handle].wanted, !isSick && wanted[handle].wanted && slices.Contains(attachedTo(node), handle):
			uses = append(uses, handle)
		default:
			c.unmount(handle, name)
		}
	}
	slices.Sort(uses)
	if c.luck(10) == 0 {
		return // It is slow, or was restarted.
	}
	node.Status.VolumesInUse = nil
	for _, handle := range uses {
		node.Status.VolumesInUse = append(node.Status.VolumesInUse, unique(handle))
	}
	if node, err = store.Update(ctx, c.world, node); err != nil || c.luck(10) == 0 || isSick {
		return
	}
	for _, handle := range uses {
		if slices.Contains(attachedTo(node), handle) && !c.isMounted(handle, name) {
			c.mount(handle, name, wanted[handle].claim)
		}
	}
	c.growAll(ctx, name)
}

// growAll does what a node does for the volumes that the control plane has made larger.
func (c *cluster) growAll(ctx context.Context, node string) {
	claims, _, err := store.ListOf[*v1.PersistentVolumeClaim](ctx, c.world, "")
	if err != nil {
		c.violate("%v", err)
	}
	for _, claim := range claims {
		pv, err := store.Get[*v1.PersistentVolume](ctx, c.world, "", claim.Spec.VolumeName)
		if err != nil || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID || !c.isMounted(pv.Spec.CSI.VolumeHandle, node) {
			continue
		}
		switch claim.Status.AllocatedResourceStatuses[v1.ResourceStorage] {
		case v1.PersistentVolumeClaimNodeResizePending, v1.PersistentVolumeClaimNodeResizeInProgress:
			c.grow(ctx, claim, pv.Spec.CSI.VolumeHandle)
		}
	}
}

func (c *cluster) grow(ctx context.Context, claim *v1.PersistentVolumeClaim, handle string) {
	end := operationexecutor.Expansion{Size: claim.Status.AllocatedResources[v1.ResourceStorage]}
	switch c.luck(10) {
	case 0:
		return
	case 1:
		end.Status = v1.PersistentVolumeClaimNodeResizeInfeasible
	default:
		c.growFilesystem(handle)
	}
	_, err := store.Update(ctx, c.world, end.Apply(claim))
	c.note("a node says of %s: %v %s: %v", claim.Name, end.Status, end.Size.String(), err)
}

// changeNode changes a node's object, as who writes last.
func (c *cluster) changeNode(ctx context.Context, name string, change func(node *v1.Node)) {
	node, err := store.Get[*v1.Node](ctx, c.world, "", name)
	for ; err == nil; node, err = store.Get[*v1.Node](ctx, c.world, "", name) {
		change(node)
		if _, err := store.Update(ctx, c.world, node); err == nil {
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, was := c.wellSince[name]; !isReady(node) {
		delete(c.wellSince, name)
	} else if !was {
		c.wellSince[name] = time.Now()
	}
}

// sicken has a node be ready no more. Its processes may live on.
func (c *cluster) sicken(ctx context.Context, name string) {
	c.note("%s is sick", name)
	c.changeNode(ctx, name, func(node *v1.Node) { node.Status.Conditions[0].Status = v1.ConditionUnknown })
}

func (c *cluster) heal(ctx context.Context, name string) {
	c.note("%s is well", name)
	c.changeNode(ctx, name, func(node *v1.Node) { node.Status.Conditions[0].Status = v1.ConditionTrue })
}

// reboot ends all processes of a node. Its object says so later, when its agent does.
func (c *cluster) reboot(name string) {
	c.note("%s is started again", name)
	c.unmountAll(name)
}

// fence cuts a node off for good: nothing on it can write any more, and then the orchestrator says so.
func (c *cluster) fence(ctx context.Context, name string) {
	c.note("%s is fenced off", name)
	c.unmountAll(name)
	c.changeNode(ctx, name, func(node *v1.Node) {
		node.Spec.Taints = []v1.Taint{{Key: v1.TaintNodeOutOfService, Effect: v1.TaintEffectNoExecute}}
	})
	pods, _, err := store.ListOf[*v1.Pod](ctx, c.world, "")
	for _, pod := range pods {
		if err == nil && pod.Spec.NodeName == name {
			_ = store.Delete(ctx, c.world, pod)
		}
	}
}

// release takes a node back that was restarted since.
func (c *cluster) release(ctx context.Context, name string) {
	c.changeNode(ctx, name, func(node *v1.Node) {
		if isFenced(node) {
			node.Spec.Taints, node.Status.VolumesInUse = nil, nil
		}
	})
}

func isFenced(node *v1.Node) bool { return len(node.Spec.Taints) > 0 }

func isReady(node *v1.Node) bool { return node.Status.Conditions[0].Status == v1.ConditionTrue }

func attachedTo(node *v1.Node) []string {
	var handles []string
	for _, at := range node.Status.VolumesAttached {
		handles = append(handles, string(at.Name)[len(fake.DefaultPluginName)+1:])
	}
	return handles
}

func newNode(name string) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name, v1.LabelTopologyZone: zoneOfNode[name]}},
		Status:     v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}},
	}
}
