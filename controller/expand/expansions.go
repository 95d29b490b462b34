package expand

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// errClass says that the claim's storage class does not allow the expansion.
var errClass = errors.New("set allowVolumeExpansion of the storage class, or ask for less")

// expansions are the changes that make volumes larger.
type expansions struct {
	plugins  *volume.VolumePluginMgr
	executor *operationexecutor.Executor
	classes  *store.Mirror[*storagev1.StorageClass]
	blocked  *blockedClaims
	// infeasible is the wait before a size that is infeasible on a node is tried again.
	infeasible time.Duration
}

var _ change = (*expansions)(nil)

func requested(claim *v1.PersistentVolumeClaim) resource.Quantity {
	return claim.Spec.Resources.Requests[v1.ResourceStorage]
}

func (e *expansions) request(claim *v1.PersistentVolumeClaim) request {
	size := requested(claim)
	return request{uid: claim.UID, value: strconv.FormatInt(size.Value(), 10)}
}

func (e *expansions) blockedClaims() *blockedClaims { return e.blocked }

// isWanted reports whether the control plane has to take the next step for a claim: the claim requests more than it has,
// or only the control plane can continue an expansion that was begun. While a node has to expand the filesystem, the node
// takes the next step.
func (e *expansions) isWanted(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) bool {
	want, has, allocated := requested(claim), claim.Status.Capacity[v1.ResourceStorage], claim.Status.AllocatedResources[v1.ResourceStorage]
	size := pv.Spec.Capacity[v1.ResourceStorage]
	switch claim.Status.AllocatedResourceStatuses[v1.ResourceStorage] {
	case v1.PersistentVolumeClaimNodeResizePending, v1.PersistentVolumeClaimNodeResizeInProgress:
		return size.Cmp(allocated) < 0
	case v1.PersistentVolumeClaimControllerResizeInProgress, v1.PersistentVolumeClaimControllerResizeInfeasible,
		v1.PersistentVolumeClaimNodeResizeInfeasible:
		return true
	}
	return !has.IsZero() && want.Cmp(has) > 0
}

func (e *expansions) isUncertain(claim *v1.PersistentVolumeClaim) bool {
	return operationexecutor.IsExpansionUncertain(claim)
}

// mayTry reports whether the controller may work on a claim now. A size that is infeasible on a node is tried again as
// rarely as one that is infeasible for the storage.
func (e *expansions) mayTry(claim *v1.PersistentVolumeClaim) bool {
	name, wanted := store.NameOf(claim), e.request(claim)
	if e.blocked.mustWait(name, wanted) {
		return false
	}
	if claim.Status.AllocatedResourceStatuses[v1.ResourceStorage] == v1.PersistentVolumeClaimNodeResizeInfeasible {
		// The node gets one more attempt now, and the next after the back-off.
		e.blocked.put(name, blockedClaim{request: wanted, until: time.Now().Add(e.infeasible)})
	}
	return true
}

// allowed returns why a claim must not be expanded, or nil. An expansion that was begun is finished, even if the class
// forbids it by now. A claim without a class has a volume that was made by hand, and may be expanded.
func (e *expansions) allowed(claim *v1.PersistentVolumeClaim) error {
	begun := claim.Status.AllocatedResourceStatuses[v1.ResourceStorage] != ""
	name := classOf(claim)
	if begun || name == "" {
		return nil
	}
	class, there := e.classes.Get(types.NamespacedName{Name: name})
	switch {
	case !there:
		return fmt.Errorf("storage class %q does not exist: %w: %w", name, store.ErrNotFound, errClass)
	case class.AllowVolumeExpansion == nil || !*class.AllowVolumeExpansion:
		return fmt.Errorf("storage class %q does not allow that volumes grow: %w", name, errClass)
	}
	return nil
}

func (e *expansions) plugin(spec *volume.Spec) (string, error) {
	plugin, err := e.plugins.FindExpandablePluginBySpec(spec)
	if err != nil {
		return "", err
	}
	return plugin.GetPluginName(), nil
}

func (e *expansions) begin(ctx context.Context, v target) (*operationexecutor.Operation, error) {
	return e.executor.ExpandVolume(ctx, operationexecutor.VolumeToExpand{VolumeName: v.name, VolumeSpec: v.spec, PluginName: v.plugin})
}

func (e *expansions) events() changeEvents {
	return changeEvents{
		failed: operationexecutor.ReasonVolumeResizeFailed, external: "ExternalExpanding",
		message: "the claim asks for more and is not expanded here: %v",
	}
}
