package operationexecutor

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/volume"
)

// Expansion is how far the expansion of a claim has come.
type Expansion struct {
	// Status is the state of the resource "storage"; empty when the expansion is finished.
	Status v1.ClaimResourceStatus
	// Size is the size in bytes that is being allocated, or that the volume has when the expansion is finished.
	Size resource.Quantity
	// Err is why it did not go on; nil when nothing failed.
	Err error
}

// waits are the conditions that a state of the expansion puts on a claim, and what they say.
var waits = map[v1.ClaimResourceStatus]struct {
	condition v1.PersistentVolumeClaimConditionType
	message   string
	failure   v1.PersistentVolumeClaimConditionType // when there is an error
}{
	v1.PersistentVolumeClaimControllerResizeInProgress: {
		v1.PersistentVolumeClaimResizing, "the storage is being expanded", v1.PersistentVolumeClaimControllerResizeError,
	},
	v1.PersistentVolumeClaimControllerResizeInfeasible: {failure: v1.PersistentVolumeClaimControllerResizeError},
	v1.PersistentVolumeClaimNodeResizePending: {
		v1.PersistentVolumeClaimFileSystemResizePending, "the node that uses the volume next expands it",
		v1.PersistentVolumeClaimNodeResizeError,
	},
	v1.PersistentVolumeClaimNodeResizeInProgress: {
		v1.PersistentVolumeClaimFileSystemResizePending, "a node expands the volume", v1.PersistentVolumeClaimNodeResizeError,
	},
	v1.PersistentVolumeClaimNodeResizeInfeasible: {failure: v1.PersistentVolumeClaimNodeResizeError},
}

// expansionConditions are the conditions that tell of an expansion.
var expansionConditions = []v1.PersistentVolumeClaimConditionType{
	v1.PersistentVolumeClaimResizing, v1.PersistentVolumeClaimFileSystemResizePending,
	v1.PersistentVolumeClaimControllerResizeError, v1.PersistentVolumeClaimNodeResizeError,
}

// Apply returns a copy of claim whose status says how far the expansion has come: the allocated size and its state while
// it goes on, the new capacity when it is finished, and the conditions of Kubernetes. Conditions that have nothing to do
// with expansion stay.
func (e Expansion) Apply(claim *v1.PersistentVolumeClaim) *v1.PersistentVolumeClaim {
	claim = claim.DeepCopy()
	status := &claim.Status
	if e.Status == "" {
		setResource(&status.Capacity, e.Size)
		delete(status.AllocatedResourceStatuses, v1.ResourceStorage)
	} else {
		setResource(&status.AllocatedResources, e.Size)
		if status.AllocatedResourceStatuses == nil {
			status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{}
		}
		status.AllocatedResourceStatuses[v1.ResourceStorage] = e.Status
	}
	if len(status.AllocatedResourceStatuses) == 0 {
		status.AllocatedResourceStatuses = nil
	}
	status.Conditions = e.conditions(status.Conditions)
	return claim
}

func setResource(list *v1.ResourceList, size resource.Quantity) {
	if *list == nil {
		*list = v1.ResourceList{}
	}
	(*list)[v1.ResourceStorage] = size
}

// conditions returns those of before that have nothing to do with expansion, and those of e. One that says what it said
// before keeps its time.
func (e Expansion) conditions(before []v1.PersistentVolumeClaimCondition) []v1.PersistentVolumeClaimCondition {
	after := slices.DeleteFunc(slices.Clone(before), func(c v1.PersistentVolumeClaimCondition) bool {
		return slices.Contains(expansionConditions, c.Type)
	})
	wait := waits[e.Status]
	if wait.condition != "" {
		after = append(after, condition(before, wait.condition, wait.message))
	}
	if e.Err != nil && wait.failure != "" {
		after = append(after, condition(before, wait.failure, e.Err.Error()))
	}
	return after
}

func condition(before []v1.PersistentVolumeClaimCondition, kind v1.PersistentVolumeClaimConditionType, message string) v1.PersistentVolumeClaimCondition {
	since := metav1.Now()
	for _, c := range before {
		if c.Type == kind && c.Status == v1.ConditionTrue {
			since = c.LastTransitionTime
		}
	}
	return v1.PersistentVolumeClaimCondition{Type: kind, Status: v1.ConditionTrue, LastTransitionTime: since, Message: message}
}

// claimSize returns the size that the claim's status says the volume has: the current size is the claim's, not that of
// the PersistentVolume, which is what the control plane has allocated.
func claimSize(claim *v1.PersistentVolumeClaim) resource.Quantity {
	return claim.Status.Capacity[v1.ResourceStorage]
}

// allocatedSize returns the size that is or was last allocated for the claim, and false when it says none.
func allocatedSize(claim *v1.PersistentVolumeClaim) (resource.Quantity, bool) {
	size, ok := claim.Status.AllocatedResources[v1.ResourceStorage]
	return size, ok
}

// resizeStatus returns how far the claim's expansion has come; empty when none goes on.
func resizeStatus(claim *v1.PersistentVolumeClaim) v1.ClaimResourceStatus {
	return claim.Status.AllocatedResourceStatuses[v1.ResourceStorage]
}

// claimed reports whether spec is a PersistentVolume that has a claim.
func claimed(spec *volume.Spec) bool {
	return spec != nil && spec.PersistentVolume != nil && spec.PersistentVolume.Spec.ClaimRef != nil
}

// readClaim returns the claim of spec from the source of truth. Its error is transient.
func (g *generator) readClaim(ctx context.Context, x *execution, spec *volume.Spec) (claim *v1.PersistentVolumeClaim, err error) {
	err = x.port(ctx, "Claim", func(ctx context.Context) error {
		claim, err = g.claims.Claim(ctx, spec)
		if err == nil && claim == nil {
			err = errors.New("there is none")
		}
		if err != nil {
			return volume.Transient(fmt.Errorf("the claim of volume %q could not be read: %w", spec.Name(), err))
		}
		return nil
	})
	return claim, err
}

// setExpansion writes how far the expansion of claim has come, and returns the claim as it is then. Its error is transient:
// another program may have written first.
func (g *generator) setExpansion(ctx context.Context, x *execution, claim *v1.PersistentVolumeClaim, e Expansion) (written *v1.PersistentVolumeClaim, err error) {
	err = x.port(ctx, "SetExpansion", func(ctx context.Context) error {
		written, err = g.claims.SetExpansion(ctx, claim, e)
		if err == nil && written == nil {
			err = fmt.Errorf("ClaimStatus returned neither a claim nor an error: %w", volume.ErrInvalid)
		}
		if err != nil {
			return volume.Transient(fmt.Errorf("how far the expansion has come could not be written to claim %q: %w",
				volume.GetPersistentVolumeClaimQualifiedName(claim), err))
		}
		return nil
	})
	return written, err
}
