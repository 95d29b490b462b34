package storage

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// ErrSourceGone says that the claim that a new volume is to be a copy of, or its volume, is not there.
var ErrSourceGone = errors.New("the source of the copy is gone")

// sourceClaim returns the name of the claim whose volume is to be copied, "" where the data source is none or no claim: that
// is left to the plugin.
func sourceClaim(claim *v1.PersistentVolumeClaim) (string, error) {
	local, ref := claim.Spec.DataSource, claim.Spec.DataSourceRef
	if local == nil && ref == nil {
		return "", nil
	}
	if ref == nil {
		ref = &v1.TypedObjectReference{APIGroup: local.APIGroup, Kind: local.Kind, Name: local.Name}
	}
	switch {
	case local != nil && (objects.Deref(local.APIGroup) != objects.Deref(ref.APIGroup) || local.Kind != ref.Kind || local.Name != ref.Name):
		return "", fmt.Errorf("dataSource and dataSourceRef name different things: remove one: %w", volume.ErrInvalid)
	case ref.Kind != "PersistentVolumeClaim" || objects.Deref(ref.APIGroup) != "":
		return "", nil
	case ref.Namespace != nil && *ref.Namespace != claim.Namespace:
		return "", fmt.Errorf("the data source is claim %q of namespace %q: only one of the claim's own namespace %q can be copied: %w",
			ref.Name, *ref.Namespace, claim.Namespace, volume.ErrInfeasible)
	case ref.Name == claim.Name:
		return "", fmt.Errorf("the claim is its own data source: name another claim: %w", volume.ErrInvalid)
	}
	return ref.Name, nil
}

// sourceOf returns the volume that plugin is to copy for claim; nil where the data source is none or no claim. One that is not
// bound yet is waited for.
func (p *Plugins) sourceOf(
	ctx context.Context, claim *v1.PersistentVolumeClaim, plugin volume.ProvisionableVolumePlugin,
) (*v1.PersistentVolume, error) {
	name, err := sourceClaim(claim)
	if err != nil || name == "" {
		return nil, err
	}
	source, err := store.Get[*v1.PersistentVolumeClaim](ctx, p.store, claim.Namespace, name)
	if err != nil {
		return nil, goneOr(fmt.Errorf("claim %q, which is to be copied: %w", name, err))
	}
	if source.Spec.VolumeName == "" || source.Status.Phase != v1.ClaimBound {
		return nil, volume.Transient(fmt.Errorf("claim %q, which is to be copied, is not bound to a volume yet", name))
	}
	pv, err := store.Get[*v1.PersistentVolume](ctx, p.store, "", source.Spec.VolumeName)
	if err != nil {
		return nil, goneOr(fmt.Errorf("volume %q of claim %q, which is to be copied: %w", source.Spec.VolumeName, name, err))
	}
	if !objects.OwnedBy(pv, source) {
		return nil, fmt.Errorf("volume %q is not that of claim %q, which is to be copied: %w", pv.Name, name, volume.ErrInvalid)
	}
	return pv, p.canCopy(pv, plugin)
}

// goneOr marks the error of a source that is not in the store.
func goneOr(err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return volume.Transient(fmt.Errorf("%w: %w", ErrSourceGone, err))
	}
	return volume.Transient(err)
}

// canCopy refuses what the plugin that is to make the copy cannot copy.
func (p *Plugins) canCopy(pv *v1.PersistentVolume, plugin volume.ProvisionableVolumePlugin) error {
	copies, err := p.plugins.FindCloneablePluginBySpec(volume.NewSpecFromPersistentVolume(pv, false))
	switch {
	case errors.Is(err, volume.ErrNoPlugin):
		return fmt.Errorf("volume %q cannot be copied: %w: %w", pv.Name, volume.ErrInfeasible, err)
	case err != nil:
		return err
	case copies.GetPluginName() != plugin.GetPluginName():
		return fmt.Errorf("volume %q is one of plugin %q, and the storage class one of plugin %q, which copies its own only: %w",
			pv.Name, copies.GetPluginName(), plugin.GetPluginName(), volume.ErrInfeasible)
	}
	return nil
}
