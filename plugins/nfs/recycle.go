package nfs

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volume"
)

// unmountTimeout bounds the unmount after a recycling, also if its context has ended.
const unmountTimeout = 30 * time.Second

// Recycle implements [volume.RecyclableVolumePlugin]. If [Options].Recycler is set, a pod does the work. Otherwise the
// plugin mounts the export in a directory of its own and removes the content. If the server does not let this host remove
// something, that is an error.
func (p *Plugin) Recycle(ctx context.Context, pvName string, spec *volume.Spec, recorder volume.RecycleEventRecorder) error {
	if spec == nil || spec.PersistentVolume == nil {
		return fmt.Errorf("nfs volume %q: only a PersistentVolume is recycled: %w", pvName, volume.ErrInvalid)
	}
	e, err := exportOf(spec)
	if err != nil {
		return err
	}
	if err := volume.CheckPathElement(pvName); err != nil {
		return fmt.Errorf("nfs volume to be recycled: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, volume.RecyclerTimeout(spec.PersistentVolume))
	defer cancel()
	if err := p.recycle(ctx, pvName, e, spec, recorder); err != nil {
		return fmt.Errorf("nfs volume %q, %s, is not recycled: %w", pvName, e.device(), err)
	}
	return nil
}

func (p *Plugin) recycle(ctx context.Context, pvName string, e export, spec *volume.Spec, recorder volume.RecycleEventRecorder) error {
	if p.options.Recycler != nil {
		return p.options.Recycler.RecycleByPod(ctx, volume.PodRecycleRequest{
			PVName: pvName, Timeout: volume.RecyclerTimeout(spec.PersistentVolume),
			Volume: v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: e.server, Path: e.path}},
		}, recorder)
	}
	dir := filepath.Join(p.host.GetPluginDir(Name), "recycle", pvName)
	if err := p.unmountRecycled(ctx, dir); err != nil { // A killed process may have mounted it.
		return err
	}
	e.readOnly = false
	if err := p.mount(ctx, e, volume.MountOptionFromSpec(spec), dir); err != nil {
		return err
	}
	err := p.empty(ctx, dir)
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), unmountTimeout)
	defer cancel()
	if err := errors.Join(err, p.unmountRecycled(after, dir)); err != nil {
		return err
	}
	recorder(v1.EventTypeNormal, "all content of "+e.device()+" was removed")
	return nil
}

// empty removes all content of the export that is mounted at dir.
func (p *Plugin) empty(ctx context.Context, dir string) error {
	root, err := safepath.Open(ctx, dir, safepath.Options{Mounter: p.options.Mounter})
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // nothing was written to it
	return root.RemoveContent(ctx)
}

func (p *Plugin) unmountRecycled(ctx context.Context, dir string) error {
	return mount.UnmountPath(ctx, p.options.Mounter, dir, p.unmountOptions(mount.Identity{}))
}
