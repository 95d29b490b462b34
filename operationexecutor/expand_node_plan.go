package operationexecutor

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/volume"
)

// This file chooses what a node does for a volume that has been given more than the node has. It is a pure function.

// annotationNodeExpansionNotRequired on a claim says that the storage grew and that no node has anything to do, which
// matters for volumes that several nodes have.
const annotationNodeExpansionNotRequired = "volume.kubernetes.io/node-expansion-not-required"

// nodeStep is what the node does next.
type nodeStep uint8

const (
	nodeNothing  nodeStep = iota // the node has the size
	nodeReadOnly                 // the volume is read-only here, and so cannot be grown
	nodeTake                     // the size is the volume's, without a call
	nodeWait                     // the control plane has not asked the node
	nodeGrow                     // the plugin is called
)

// nodeFacts is what the choice depends on.
type nodeFacts struct {
	spec  *volume.Spec
	claim *v1.PersistentVolumeClaim
	// desired is the size that the PersistentVolume was given, current the one that the volume has here.
	desired, current resource.Quantity
	// failedBefore says that the node failed for good to grow the volume.
	failedBefore bool
}

// nodePlan is what the node does next.
type nodePlan struct {
	step   nodeStep
	target resource.Quantity
	// recorded says that the claim tells how far the expansion came, so that the node writes there what it does.
	recorded bool
	// updated says that the claim has the size already, from another node: nothing is written.
	updated bool
	// changed says that the claim asks for something else than what this node failed at for good: another failure ends the
	// attempt, so that the control plane may choose again.
	changed bool
}

// planNode chooses. A claim that says nothing of an expansion is one of a control plane that does not record any: the
// node then grows the volume to the size of the PersistentVolume.
func planNode(f nodeFacts) nodePlan {
	plan := nodePlan{target: f.desired}
	if f.desired.Cmp(f.current) <= 0 {
		return plan
	}
	if readOnly(f.spec) {
		plan.step = nodeReadOnly
		return plan
	}
	has := claimSize(f.claim)
	status := resizeStatus(f.claim)
	allocated, ok := allocatedSize(f.claim)
	if ok {
		plan.target = allocated
	}
	plan.recorded = ok || status != ""
	plan.updated = status == "" && has.Cmp(plan.target) >= 0
	plan.changed = f.failedBefore && requestChanged(f.claim, plan.target)
	plan.step = plan.choose(status, f)
	return plan
}

func (p nodePlan) choose(status v1.ClaimResourceStatus, f nodeFacts) nodeStep {
	switch {
	case !p.recorded:
		return nodeGrow
	case status == v1.PersistentVolumeClaimNodeResizePending, status == v1.PersistentVolumeClaimNodeResizeInProgress:
		return nodeGrow
	case !p.updated, p.target.Cmp(f.current) <= 0:
		return nodeWait
	case everyNodeExpands(f):
		return nodeGrow
	}
	return nodeTake
}

// everyNodeExpands reports whether a node has to grow the volume although another one did.
func everyNodeExpands(f nodeFacts) bool {
	if _, not := f.claim.Annotations[annotationNodeExpansionNotRequired]; not {
		return false
	}
	return volume.ContainsAccessMode(f.spec.PersistentVolume.Spec.AccessModes, v1.ReadWriteMany)
}

func requestChanged(claim *v1.PersistentVolumeClaim, target resource.Quantity) bool {
	requested, ok := claim.Spec.Resources.Requests[v1.ResourceStorage]
	return ok && requested.Cmp(target) != 0
}

// readOnly reports whether the pod may only read the volume.
func readOnly(spec *volume.Spec) bool {
	driver, _ := spec.Driver()
	return spec.ReadOnly || driver.ReadOnly
}
