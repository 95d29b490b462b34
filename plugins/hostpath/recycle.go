package hostpath

import (
	"context"
	"fmt"
	"path"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volume"
)

// Recycle implements [volume.RecyclableVolumePlugin]: by a pod where [Options].Recycler is there, else in this process. The
// path must be a directory in [Options].BaseDir; else the error matches volume.ErrInvalid. Links and mounts are treated as
// by Delete, and the directory itself stays.
func (p *Plugin) Recycle(ctx context.Context, pvName string, spec *volume.Spec, recorder volume.RecycleEventRecorder) error {
	name, err := p.reclaimed(spec)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, volume.RecyclerTimeout(spec.PersistentVolume))
	defer cancel()
	if err := p.recycle(ctx, pvName, name, spec, recorder); err != nil {
		return fmt.Errorf("host path volume %q is not recycled: %w", pvName, err)
	}
	return nil
}

func (p *Plugin) recycle(ctx context.Context, pvName, name string, spec *volume.Spec, recorder volume.RecycleEventRecorder) error {
	if p.recycler != nil {
		return p.recycler.RecycleByPod(ctx, volume.PodRecycleRequest{
			PVName: pvName, Timeout: volume.RecyclerTimeout(spec.PersistentVolume),
			Volume: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: filepath.Join(p.baseDir, name)}},
		}, recorder)
	}
	base, err := p.openBase(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = base.Close() }() // nothing was written to it
	if err := p.empty(ctx, base, name); err != nil {
		return inUse(err)
	}
	recorder(v1.EventTypeNormal, "all content of "+path.Join(p.baseDir, name)+" was removed")
	return nil
}

// empty removes all that is in the directory name.
func (p *Plugin) empty(ctx context.Context, base *safepath.Root, name string) error {
	if err := p.checkNoMount(ctx, base.Path(), name); err != nil {
		return err
	}
	dir, err := base.Sub(ctx, name)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // likewise
	return dir.RemoveContent(ctx)
}

// checkNoMount refuses a name at which, in which, or on the way to which something is mounted: it may be a tree that is not
// the volume's.
func (p *Plugin) checkNoMount(ctx context.Context, base, name string) error {
	table, err := p.mount.List(ctx)
	if err != nil {
		return err
	}
	dir := filepath.Join(base, name)
	for _, m := range table {
		inBase := m.Path != base && safepath.Contains(base, m.Path)
		if inBase && (safepath.Contains(m.Path, dir) || safepath.Contains(dir, m.Path)) {
			return fmt.Errorf("%s is a mount of %s (%s): %w", m.Path, m.Source, m.FSType, safepath.ErrMounted)
		}
	}
	return nil
}
