package populator

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// ClaimStatus is the operationexecutor.ClaimStatus of a store: the expansion of the volume of a claim.
type ClaimStatus struct {
	// Store has the claims.
	Store store.Store
}

var _ operationexecutor.ClaimStatus = ClaimStatus{}

// Claim implements operationexecutor.ClaimStatus.
func (c ClaimStatus) Claim(ctx context.Context, spec *volume.Spec) (*v1.PersistentVolumeClaim, error) {
	owner := spec.PersistentVolume.Spec.ClaimRef
	claim, err := store.Get[*v1.PersistentVolumeClaim](ctx, c.Store, owner.Namespace, owner.Name)
	if err != nil {
		return nil, err
	}
	name := volume.GetPersistentVolumeClaimQualifiedName(claim)
	switch {
	case claim.UID != owner.UID:
		return nil, fmt.Errorf("PersistentVolume %q belongs to claim %q with UID %q, and the claim of that name has UID %q: %w",
			spec.Name(), name, owner.UID, claim.UID, ErrClaimNotReady)
	case claim.Spec.VolumeName != spec.Name():
		return nil, fmt.Errorf("claim %q is bound to PersistentVolume %q, not to %q: %w", name, claim.Spec.VolumeName, spec.Name(), ErrClaimNotReady)
	}
	return claim, nil
}

// SetExpansion implements operationexecutor.ClaimStatus. The store refuses a claim that was written meanwhile.
func (c ClaimStatus) SetExpansion(ctx context.Context, claim *v1.PersistentVolumeClaim, expansion operationexecutor.Expansion) (*v1.PersistentVolumeClaim, error) {
	written, err := c.Store.Update(ctx, expansion.Apply(claim))
	if err != nil {
		return nil, err
	}
	updated, ok := written.(*v1.PersistentVolumeClaim)
	if !ok {
		return nil, fmt.Errorf("the store returned a %T for a claim: %w", written, volume.ErrInvalid)
	}
	return updated, nil
}
