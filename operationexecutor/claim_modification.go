package operationexecutor

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/internal/outcome"
)

// Modification is how far the modification of a claim's volume has come.
type Modification struct {
	// Status is the state; empty when the volume has the class.
	Status v1.PersistentVolumeClaimModifyVolumeStatus
	// Class is the name of the class that the volume is to have, or has; empty when it has none.
	Class string
	// Err is why it did not go on; nil when nothing failed.
	Err error
}

// The reasons of the condition VolumeModifyVolumeError.
const (
	// modifyFailed says that no call has changed anything, or that the last one did not begin.
	modifyFailed = "Failed"
	// modifyUncertain says that the last call may have changed something.
	modifyUncertain  = "Uncertain"
	modifyInfeasible = "Infeasible"
)

// Apply returns a copy of claim whose status says how far the modification has come: the class that the volume is to have and
// the state while it goes on, the current class when it is finished, and the conditions of Kubernetes. Conditions that have
// nothing to do with modification stay.
func (m Modification) Apply(claim *v1.PersistentVolumeClaim) *v1.PersistentVolumeClaim {
	claim = claim.DeepCopy()
	status := &claim.Status
	if m.Status != "" {
		status.ModifyVolumeStatus = &v1.ModifyVolumeStatus{Status: m.Status, TargetVolumeAttributesClassName: m.Class}
	} else {
		status.ModifyVolumeStatus, status.CurrentVolumeAttributesClassName = nil, nil
		if m.Class != "" {
			status.CurrentVolumeAttributesClassName = &m.Class
		}
	}
	status.Conditions = m.conditions(status.Conditions)
	return claim
}

// conditions returns those of before that have nothing to do with modification, and those of m. One of a type that was there
// before keeps its time.
func (m Modification) conditions(before []v1.PersistentVolumeClaimCondition) []v1.PersistentVolumeClaimCondition {
	after := slices.DeleteFunc(slices.Clone(before), func(c v1.PersistentVolumeClaimCondition) bool {
		return c.Type == v1.PersistentVolumeClaimVolumeModifyingVolume || c.Type == v1.PersistentVolumeClaimVolumeModifyVolumeError
	})
	if m.Status == "" || m.Status == v1.PersistentVolumeClaimModifyVolumePending {
		return after
	}
	after = append(after, condition(before, v1.PersistentVolumeClaimVolumeModifyingVolume, "the volume is to have the attributes of class "+m.Class))
	if m.Err != nil {
		failure := condition(before, v1.PersistentVolumeClaimVolumeModifyVolumeError, m.Err.Error())
		failure.Reason = m.reason()
		failure.LastProbeTime = metav1.Now()
		after = append(after, failure)
	}
	return after
}

func (m Modification) reason() string {
	switch {
	case m.Status == v1.PersistentVolumeClaimModifyVolumeInfeasible:
		return modifyInfeasible
	case outcome.IsUncertain(m.Err):
		return modifyUncertain
	}
	return modifyFailed
}

// IsModificationUncertain reports whether the volume of a claim may have attributes of the class that the claim's status names
// as its target, because a call for that class may have been made and is not known to have ended without effect. No other
// change of the volume may begin until that is known.
func IsModificationUncertain(claim *v1.PersistentVolumeClaim) bool {
	status := claim.Status.ModifyVolumeStatus
	if status == nil || status.Status != v1.PersistentVolumeClaimModifyVolumeInProgress || status.TargetVolumeAttributesClassName == "" {
		return false
	}
	return !slices.ContainsFunc(claim.Status.Conditions, func(c v1.PersistentVolumeClaimCondition) bool {
		return c.Type == v1.PersistentVolumeClaimVolumeModifyVolumeError && c.Status == v1.ConditionTrue && c.Reason == modifyFailed
	})
}

// IsExpansionUncertain does the same for an expansion by the control plane.
func IsExpansionUncertain(claim *v1.PersistentVolumeClaim) bool {
	return resizeStatus(claim) == v1.PersistentVolumeClaimControllerResizeInProgress &&
		!slices.ContainsFunc(claim.Status.Conditions, func(c v1.PersistentVolumeClaimCondition) bool {
			return c.Type == v1.PersistentVolumeClaimControllerResizeError && c.Status == v1.ConditionTrue
		})
}
