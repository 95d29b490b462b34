package volumemanager

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// This file gives the executor what the store knows of claims and of this node.

// claimStatus is the operationexecutor.ClaimStatus of a store.
type claimStatus struct{ store store.Store }

var _ operationexecutor.ClaimStatus = claimStatus{}

// Claim implements operationexecutor.ClaimStatus.
func (c claimStatus) Claim(ctx context.Context, spec *volume.Spec) (*v1.PersistentVolumeClaim, error) {
	owner := spec.PersistentVolume.Spec.ClaimRef
	claim, err := store.Get[*v1.PersistentVolumeClaim](ctx, c.store, owner.Namespace, owner.Name)
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
func (c claimStatus) SetExpansion(ctx context.Context, claim *v1.PersistentVolumeClaim, expansion operationexecutor.Expansion) (*v1.PersistentVolumeClaim, error) {
	written, err := c.store.Update(ctx, expansion.Apply(claim))
	if err != nil {
		return nil, err
	}
	updated, ok := written.(*v1.PersistentVolumeClaim)
	if !ok {
		return nil, fmt.Errorf("the store returned a %T for a claim: %w", written, volume.ErrInvalid)
	}
	return updated, nil
}

// nodeLabels is the operationexecutor.NodeLabels of a store. A node that the store does not know has its name alone as a
// label, as for those who bind claims.
type nodeLabels struct {
	store store.Store
	name  string
}

func (n nodeLabels) NodeLabels(ctx context.Context) (map[string]string, error) {
	node, err := store.Get[*v1.Node](ctx, n.store, "", n.name)
	if errors.Is(err, store.ErrNotFound) {
		return map[string]string{v1.LabelHostname: n.name}, nil
	}
	if err != nil {
		return nil, err
	}
	return node.Labels, nil
}
