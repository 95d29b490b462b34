package operationexecutor

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// This file chooses what the control plane does for a claim that asks for more. It is a pure function of the claim and of
// the size of its PersistentVolume, so that an expansion that was broken off anywhere goes on from what is written there.

// controlStep is what the control plane does next.
type controlStep uint8

const (
	controlNothing   controlStep = iota // the claim has what it asks for, or a node is about to give it
	controlExpand                       // the storage is expanded to target
	controlNodeAgain                    // the storage is there and a node failed for good: it may try again
)

// controlPlan is what the control plane does next, and to which size.
type controlPlan struct {
	step   controlStep
	target resource.Quantity
}

// planControl chooses.
//
// The control plane first finishes an allocation that it may have begun, even if the claim requests less by now, because
// only the control plane knows how far it came. It drops an allocation only if that is infeasible, and continues with the
// size that the claim requests now.
//
// If the PersistentVolume already has the requested size, the rest is up to the nodes, unless the claim does not record yet
// that the storage has that size. An infeasible allocation beyond that size is dropped for the size that the volume has.
// Kubernetes tries it for ever.
func planControl(claim *v1.PersistentVolumeClaim, volumeSize resource.Quantity) controlPlan {
	requested := claim.Spec.Resources.Requests[v1.ResourceStorage]
	allocated, ok := allocatedSize(claim)
	if !ok {
		allocated = requested
	}
	status := resizeStatus(claim)
	if volumeSize.Cmp(requested) < 0 {
		return controlPlan{step: controlExpand, target: growing(status, requested, allocated)}
	}
	current := claimSize(claim)
	switch status {
	case v1.PersistentVolumeClaimNodeResizePending, v1.PersistentVolumeClaimNodeResizeInProgress:
		return controlPlan{step: controlNothing}
	case v1.PersistentVolumeClaimNodeResizeInfeasible:
		return controlPlan{step: controlNodeAgain, target: allocated}
	case v1.PersistentVolumeClaimControllerResizeInProgress:
		return controlPlan{step: controlExpand, target: allocated}
	case v1.PersistentVolumeClaimControllerResizeInfeasible:
		return controlPlan{step: controlExpand, target: volumeSize}
	}
	if current.Cmp(requested) < 0 {
		return controlPlan{step: controlExpand, target: requested}
	}
	return controlPlan{step: controlNothing}
}

// growing is the target while the PersistentVolume is smaller than what is asked for.
func growing(status v1.ClaimResourceStatus, requested, allocated resource.Quantity) resource.Quantity {
	switch status {
	case v1.PersistentVolumeClaimControllerResizeInProgress, v1.PersistentVolumeClaimNodeResizePending,
		v1.PersistentVolumeClaimNodeResizeInProgress, v1.PersistentVolumeClaimNodeResizeInfeasible:
		return allocated
	case v1.PersistentVolumeClaimControllerResizeInfeasible:
	}
	return requested
}
