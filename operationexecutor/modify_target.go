package operationexecutor

import (
	v1 "k8s.io/api/core/v1"
)

// This file chooses what the control plane does for a claim that names a class of attributes. It is a pure function of the
// claim, so that a modification that was broken off anywhere goes on from what is written there.

// modifyStep is what the control plane does next.
type modifyStep uint8

const (
	modifyNothing  modifyStep = iota // the volume has the class that the claim names
	modifyVolume                     // the volume gets the attributes of class
	modifyWithdraw                   // the claim names no class any more, and nothing was begun
)

// modifyPlan is what the control plane does next, and with which class.
type modifyPlan struct {
	step  modifyStep
	class string
}

// NeedsModification reports whether the control plane has something to do for the attributes of a claim's volume.
func NeedsModification(claim *v1.PersistentVolumeClaim) bool {
	return planModify(claim).step != modifyNothing
}

// ModificationClass returns the name of the class whose attributes the volume of a claim gets next, and "" when it gets none:
// the one that the claim names, or one that it named before and that the volume may have in part.
func ModificationClass(claim *v1.PersistentVolumeClaim) string { return planModify(claim).class }

// planModify chooses.
//
// A modification whose effect is not known is finished first, even if the claim names another class by now: the volume may
// have some of its attributes, and only the storage knows which. Any other is dropped for the class that the claim names now.
// That may be the class that the volume had before. A claim that names no class any more gets what was begun, as in
// Kubernetes, unless that is infeasible or was not begun: then its status is as it was before.
func planModify(claim *v1.PersistentVolumeClaim) modifyPlan {
	wanted, current, status := named(claim.Spec.VolumeAttributesClassName), currentClass(claim), claim.Status.ModifyVolumeStatus
	switch {
	case status == nil && (wanted == current || wanted == ""):
		return modifyPlan{step: modifyNothing}
	case status == nil:
		return modifyPlan{step: modifyVolume, class: wanted}
	case IsModificationUncertain(claim):
		return modifyPlan{step: modifyVolume, class: status.TargetVolumeAttributesClassName}
	case wanted != "":
		return modifyPlan{step: modifyVolume, class: wanted}
	case status.Status == v1.PersistentVolumeClaimModifyVolumeInProgress && status.TargetVolumeAttributesClassName != "":
		return modifyPlan{step: modifyVolume, class: status.TargetVolumeAttributesClassName}
	}
	return modifyPlan{step: modifyWithdraw}
}

func currentClass(claim *v1.PersistentVolumeClaim) string {
	return named(claim.Status.CurrentVolumeAttributesClassName)
}

// named returns the name of a class, "" for none.
func named(class *string) string {
	if class == nil {
		return ""
	}
	return *class
}
