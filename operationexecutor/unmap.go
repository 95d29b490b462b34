package operationexecutor

import (
	"context"
	"errors"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// GenerateUnmapVolumeFunc implements [OperationGenerator].
func (g *generator) GenerateUnmapVolumeFunc(v MountedVolume, actualState ActualStateOfWorldMounterUpdater) *Operation {
	info := OperationInfo{Kind: OpUnmap, PluginName: v.PluginName, VolumeName: v.VolumeName, PodName: v.PodName}
	return newOperation(info, &unmapping{unmounting{generator: g, v: v, state: actualState}})
}

// unmapping is one unmap operation.
type unmapping struct{ unmounting }

// ended records what became of the operation.
func (u *unmapping) ended(err error) error {
	object, name := eitherObject(u.v.Pod, u.v.VolumeSpec), u.v.InnerVolumeSpecName
	if err != nil {
		u.event(object, v1.EventTypeWarning, reasonFailedUnmapVolume, "unmapping volume %q failed: %v", name, err)
		return err
	}
	u.succeeded(object, reasonSuccessfulUnmountVolume, "volume %q is unmapped", name)
	return nil
}

func (u *unmapping) run(ctx context.Context, x *execution) error {
	u.x = x
	if u.blocks == nil {
		return errNoBlockMapper
	}
	plugin, err := find(ctx, u.x, func() (volume.BlockVolumePlugin, error) { return u.plugins.FindMapperPluginByName(u.v.PluginName) })
	if err != nil {
		return err
	}
	unmapper, err := construct(ctx, u.x, "NewBlockVolumeUnmapper", func() (volume.BlockVolumeUnmapper, error) {
		return plugin.NewBlockVolumeUnmapper(u.v.InnerVolumeSpecName, u.v.PodUID)
	})
	if err != nil {
		return err
	}
	d := DeviceMapping{PodUID: u.v.PodUID}
	if d.GlobalMapPath, err = u.globalMapPath(ctx, u.x, u.v.DeviceMountPath, u.v.VolumeSpec, unmapper); err != nil {
		return err
	}
	link, err := linkOf(ctx, u.x, unmapper)
	if err != nil {
		return err
	}
	d.PodMapDir, d.LinkName = link.dir, link.name
	return u.unmap(ctx, unmapper, d)
}

// globalMapPath returns where the volume's binds are: where they were made, or where the plugin would have them.
func (g *generator) globalMapPath(ctx context.Context, x *execution, known string, spec *volume.Spec, unmapper volume.BlockVolumeUnmapper) (string, error) {
	if known != "" {
		return known, nil
	}
	if spec == nil {
		return "", errors.New("neither the global map path of the volume nor its spec is known")
	}
	given := g.copyOf(x, spec)
	return construct(ctx, x, "GetGlobalMapPath", func() (string, error) { return unmapper.GetGlobalMapPath(given) })
}

// unmap undoes the binding and then what the plugin did for the pod.
func (u *unmapping) unmap(ctx context.Context, unmapper volume.BlockVolumeUnmapper, d DeviceMapping) error {
	u.undoing = u.intent(filepath.Join(d.PodMapDir, d.LinkName))
	u.undoing.DeviceMountPath = d.GlobalMapPath
	if err := u.intend(ctx, u.x, u.undoing); err != nil {
		return err
	}
	u.x.failed = u.tearDownFailed
	if err := u.x.change(ctx, "UnmapDevice", func(ctx context.Context) error { return u.blocks.UnmapDevice(ctx, d) }); err != nil {
		return err
	}
	if custom, ok := unmapper.(volume.CustomBlockVolumeUnmapper); ok {
		args := volume.UnmapPodDeviceArgs{GlobalMapPath: d.GlobalMapPath, PodUID: d.PodUID}
		u.x.failed = u.halfDone
		err := u.x.change(ctx, "UnmapPodDevice", func(ctx context.Context) error { return custom.UnmapPodDevice(ctx, args) })
		if err != nil {
			return err
		}
	}
	u.x.failed = u.halfDone
	if err := u.checkRootAfter(ctx, u.x, "UnmapDevice"); err != nil {
		return err
	}
	return u.undone(ctx)
}
