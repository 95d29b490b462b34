package main

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/store"
)

// requestMore writes the larger request of an existing claim. Nothing else of an existing object can change. The expand controller sees
// the request and expands the volume. Then the volume manager expands the filesystem.
func (a *agent) requestMore(ctx context.Context, there, wanted runtime.Object) error {
	claim, ok := there.(*v1.PersistentVolumeClaim)
	if !ok {
		return nil
	}
	size := wanted.(*v1.PersistentVolumeClaim).Spec.Resources.Requests[v1.ResourceStorage] //nolint:forcetypeassert // Both have the same key.
	if size.Cmp(claim.Spec.Resources.Requests[v1.ResourceStorage]) <= 0 {
		return nil
	}
	changed := claim.DeepCopy()
	changed.Spec.Resources.Requests[v1.ResourceStorage] = size
	_, err := store.Update(ctx, a.database, changed)
	return err
}

// awaitSizes waits until each claim has the size that it requests. If that takes longer than options.reportAfter, the error says what
// prevents it.
func (a *agent) awaitSizes(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.options.reportAfter)
	defer cancel()
	var last *v1.PersistentVolumeClaim
	err := store.WaitForNone(ctx, a.database, func(claim *v1.PersistentVolumeClaim) bool {
		if !isTooSmall(claim) {
			return false
		}
		last = claim
		return true
	})
	if err != nil && last != nil {
		return fmt.Errorf("claim %s asks for more than it has: %w", nameOf(last), errors.Join(a.sizes.Why(store.NameOf(last)), err))
	}
	return err
}

// isTooSmall reports whether the volume of a claim must still be expanded by the controller. If only the node's part is left, the
// claim's status says so, and isTooSmall returns false.
func isTooSmall(claim *v1.PersistentVolumeClaim) bool {
	if claim.Status.Phase != v1.ClaimBound || claim.DeletionTimestamp != nil {
		return false
	}
	switch claim.Status.AllocatedResourceStatuses[v1.ResourceStorage] {
	case v1.PersistentVolumeClaimNodeResizePending, v1.PersistentVolumeClaimNodeResizeInProgress, v1.PersistentVolumeClaimNodeResizeInfeasible:
		allocated := claim.Status.AllocatedResources[v1.ResourceStorage]
		return allocated.Cmp(claim.Spec.Resources.Requests[v1.ResourceStorage]) < 0
	default:
		has := claim.Status.Capacity[v1.ResourceStorage]
		return has.Cmp(claim.Spec.Resources.Requests[v1.ResourceStorage]) < 0
	}
}
