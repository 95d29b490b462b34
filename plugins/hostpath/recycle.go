package hostpath

import (
	"context"
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// Recycle implements [volume.RecyclableVolumePlugin]. If [Options].Recycler is set, a pod does the work, otherwise this process. The
// path must be a directory in [Options].BaseDir, or the error matches volume.ErrInvalid. The volume's node, links and mounts are
// treated as in NewDeleter and Delete. The directory itself stays.
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
	base, err := p.resolveBase(ctx)
	if err != nil {
		return err
	}
	if err := p.files.RemoveContent(ctx, base, name); err != nil {
		return inUse(err)
	}
	recorder(v1.EventTypeNormal, "all content of "+filepath.Join(p.baseDir, name)+" was removed")
	return nil
}
