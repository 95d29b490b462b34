package hostpath

import (
	"context"
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// deleter deletes the directory of one volume.
type deleter struct {
	volume.MetricsNil
	plugin *Plugin
	pvName string
	name   string // in the base directory
}

var _ volume.Deleter = (*deleter)(nil)

// NewDeleter implements [volume.DeletableVolumePlugin]. A path outside of [Options].BaseDir is an error that matches
// volume.ErrInvalid. A volume whose node affinity does not name this node is one that matches volume.ErrNodeAffinity.
func (p *Plugin) NewDeleter(spec *volume.Spec) (volume.Deleter, error) {
	name, err := p.reclaimed(spec)
	if err != nil {
		return nil, err
	}
	return &deleter{plugin: p, pvName: spec.Name(), name: name}, nil
}

// reclaimed returns the name, in the base directory, of a volume that is to be recycled or deleted.
func (p *Plugin) reclaimed(spec *volume.Spec) (string, error) {
	source, err := sourceOf(spec)
	if err != nil {
		return "", err
	}
	if spec.PersistentVolume == nil {
		return "", fmt.Errorf("host path volume %q: only a PersistentVolume is recycled or deleted: %w", spec.Name(), volume.ErrInvalid)
	}
	name, err := p.nameInBase(source.Path)
	if err == nil {
		err = p.checkNode(spec.PersistentVolume)
	}
	if err != nil {
		return "", fmt.Errorf("host path volume %q: %w", spec.Name(), err)
	}
	return name, nil
}

// checkNode refuses a volume that may be one of another node: here its path may be that of another volume.
func (p *Plugin) checkNode(pv *v1.PersistentVolume) error {
	if err := volume.CheckNodeAffinityByName(pv, p.host.GetNodeName()); err != nil {
		return fmt.Errorf("nothing is removed here: reclaim it on its own node, or name this one in its node affinity: %w", err)
	}
	return nil
}

// GetPath implements [volume.Volume].
func (d *deleter) GetPath() string { return filepath.Join(d.plugin.baseDir, d.name) }

// Delete implements [volume.Deleter]. It removes what is at the path, and follows no link beneath the base directory and
// enters no mount: where something is mounted in the volume, or on the way to it, nothing is removed, and the error matches
// volume.ErrInUse. A volume is gone when it is not in the base; a base that is not there tells nothing.
func (d *deleter) Delete(ctx context.Context) error {
	if err := d.delete(ctx); err != nil {
		return fmt.Errorf("deleting host path volume %q: %w", d.pvName, err)
	}
	return nil
}

func (d *deleter) delete(ctx context.Context) error {
	base, err := d.plugin.resolveBase(ctx)
	if err != nil {
		return err
	}
	return inUse(d.plugin.files.RemoveAll(ctx, base, d.name))
}
