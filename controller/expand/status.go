package expand

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// statusWriter records the progress of expansions and modifications in the claims and volumes of a store. It also puts each written object into
// the mirrors at once.
type statusWriter struct {
	store   store.Store
	claims  *store.Mirror[*v1.PersistentVolumeClaim]
	volumes *store.Mirror[*v1.PersistentVolume]
}

var (
	_ operationexecutor.ClaimStatus      = statusWriter{}
	_ operationexecutor.VolumeCapacity   = statusWriter{}
	_ operationexecutor.VolumeAttributes = statusWriter{}
)

// Claim implements operationexecutor.ClaimStatus.
func (a statusWriter) Claim(ctx context.Context, spec *volume.Spec) (*v1.PersistentVolumeClaim, error) {
	owner := spec.PersistentVolume.Spec.ClaimRef
	claim, err := store.Get[*v1.PersistentVolumeClaim](ctx, a.store, owner.Namespace, owner.Name)
	if err != nil {
		return nil, err
	}
	if !belong(claim, spec.PersistentVolume) {
		return nil, fmt.Errorf("claim %q and volume %q do not belong to each other any more: %w", store.NameOf(claim), spec.Name(), store.ErrConflict)
	}
	return claim, nil
}

// SetExpansion implements operationexecutor.ClaimStatus.
func (a statusWriter) SetExpansion(
	ctx context.Context, claim *v1.PersistentVolumeClaim, expansion operationexecutor.Expansion,
) (*v1.PersistentVolumeClaim, error) {
	return a.writeClaim(ctx, expansion.Apply(claim))
}

func (a statusWriter) writeClaim(ctx context.Context, changed *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	written, err := store.Update(ctx, a.store, changed)
	if err == nil {
		a.claims.Put(written)
	}
	return written, err
}

// SetCapacity implements operationexecutor.VolumeCapacity.
func (a statusWriter) SetCapacity(ctx context.Context, pv *v1.PersistentVolume, size resource.Quantity) (*v1.PersistentVolume, error) {
	changed := pv.DeepCopy()
	if changed.Spec.Capacity == nil {
		changed.Spec.Capacity = v1.ResourceList{}
	}
	changed.Spec.Capacity[v1.ResourceStorage] = size
	return a.writeVolume(ctx, changed)
}

func (a statusWriter) writeVolume(ctx context.Context, changed *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	written, err := store.Update(ctx, a.store, changed)
	if err == nil {
		a.volumes.Put(written)
	}
	return written, err
}

// AttributesClass implements operationexecutor.VolumeAttributes.
func (a statusWriter) AttributesClass(ctx context.Context, name string) (*storagev1.VolumeAttributesClass, error) {
	return store.Get[*storagev1.VolumeAttributesClass](ctx, a.store, "", name)
}

// SetModification implements operationexecutor.VolumeAttributes.
func (a statusWriter) SetModification(
	ctx context.Context, claim *v1.PersistentVolumeClaim, modification operationexecutor.Modification,
) (*v1.PersistentVolumeClaim, error) {
	return a.writeClaim(ctx, modification.Apply(claim))
}

// SetAttributesClass implements operationexecutor.VolumeAttributes.
func (a statusWriter) SetAttributesClass(ctx context.Context, pv *v1.PersistentVolume, class string) (*v1.PersistentVolume, error) {
	changed := pv.DeepCopy()
	changed.Spec.VolumeAttributesClassName = &class
	return a.writeVolume(ctx, changed)
}

// belong reports whether a claim and a volume are bound to each other. It compares the UIDs.
func belong(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) bool {
	ref := pv.Spec.ClaimRef
	return ref != nil && ref.UID == claim.UID && ref.Namespace == claim.Namespace && ref.Name == claim.Name &&
		claim.Spec.VolumeName == pv.Name
}
