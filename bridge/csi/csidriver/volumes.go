package csidriver

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// Volumes finds the PersistentVolumes of drivers. [StoredVolumes] reads them from a store.
type Volumes interface {
	// PersistentVolume returns a PersistentVolume of a driver with that handle; nil without an error if there is none. If there are
	// several, one with a secret for ControllerPublishVolume comes first.
	PersistentVolume(ctx context.Context, driver, handle string) (*v1.PersistentVolume, error)
}

// StoredVolumes reads the PersistentVolumes of a store. Each look-up lists all of them.
func StoredVolumes(s store.Store) Volumes { return storedVolumes{s} }

type storedVolumes struct{ store store.Store }

// PersistentVolume implements [Volumes].
func (v storedVolumes) PersistentVolume(ctx context.Context, driver, handle string) (*v1.PersistentVolume, error) {
	all, _, err := store.ListOf[*v1.PersistentVolume](ctx, v.store, "")
	if err != nil {
		return nil, fmt.Errorf("PersistentVolumes: %w", err)
	}
	var found *v1.PersistentVolume
	for _, pv := range all {
		if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != driver || pv.Spec.CSI.VolumeHandle != handle {
			continue
		}
		if found == nil || found.Spec.CSI.ControllerPublishSecretRef == nil {
			found = pv
		}
	}
	return found, nil
}

// factsOf returns the facts of an attachment for Detach, which gets only the handle. If this process has neither attached nor
// verified the volume, the secret comes from its PersistentVolume.
func (p *Plugin) factsOf(ctx context.Context, at attachment) (attachmentFacts, error) {
	known, ok := p.attached.of(at)
	if ok || p.options.Volumes == nil {
		known.secretUnknown = !ok
		return known, nil
	}
	pv, err := p.options.Volumes.PersistentVolume(ctx, p.options.Driver, at.handle)
	if err != nil {
		return known, volume.Transient(fmt.Errorf("driver %q: the secret of volume %q is not known: %w", p.options.Driver, at.handle, err))
	}
	if pv != nil && pv.Spec.CSI != nil {
		known.secret = pv.Spec.CSI.ControllerPublishSecretRef
	}
	return known, nil
}

// errSecretUnknown explains a refused Detach that may have lacked a secret.
var errSecretUnknown = errors.New("no secret was sent, because none is known before the attachment is verified: set Options.Volumes")
