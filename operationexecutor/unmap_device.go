package operationexecutor

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// GenerateUnmapDeviceFunc implements [OperationGenerator].
func (g *generator) GenerateUnmapDeviceFunc(v AttachedVolume, actualState ActualStateOfWorldMounterUpdater) *Operation {
	info := OperationInfo{Kind: OpUnmapDevice, PluginName: v.PluginName, VolumeName: v.VolumeName}
	return newOperation(info, &unmappingDevice{unmountingDevice{generator: g, v: v, state: actualState}})
}

// unmappingDevice is one unmap-device operation.
type unmappingDevice struct{ unmountingDevice }

// ended records what became of the operation.
func (u *unmappingDevice) ended(err error) error {
	object, name := volumeObject(u.v.VolumeSpec), string(u.v.VolumeName)
	if err != nil {
		u.event(object, v1.EventTypeWarning, reasonFailedUnmapDevice, "unmapping the device of volume %q failed: %v", name, err)
		return err
	}
	u.succeeded(object, reasonSuccessfulUnmountDevice, "the device of volume %q is undone", name)
	return nil
}

func (u *unmappingDevice) run(ctx context.Context, x *execution) error {
	u.x = x
	switch {
	case u.blocks == nil:
		return errNoBlockMapper
	case u.v.VolumeSpec == nil:
		return errors.New("the spec of the block volume is not known, and by its name the plugin is asked: reconstruct the volume first")
	}
	plugin, err := find(ctx, u.x, func() (volume.BlockVolumePlugin, error) { return u.plugins.FindMapperPluginByName(u.v.PluginName) })
	if err != nil {
		return err
	}
	unmapper, err := construct(ctx, u.x, "NewBlockVolumeUnmapper", func() (volume.BlockVolumeUnmapper, error) {
		return plugin.NewBlockVolumeUnmapper(u.v.VolumeSpec.Name(), "")
	})
	if err != nil {
		return err
	}
	path, err := u.globalMapPath(ctx, u.x, u.v.DeviceMountPath, u.v.VolumeSpec, unmapper)
	if err != nil {
		return err
	}
	if err := u.checkUnmapped(ctx, path); err != nil {
		return err
	}
	return u.tearDownDevice(ctx, unmapper, path)
}

// checkUnmapped refuses while pods have the device: those that the actual state knows, and those of whom a bind is left.
func (u *unmappingDevice) checkUnmapped(ctx context.Context, path string) error {
	if err := checkNoPods(u.state, u.v.VolumeName); err != nil {
		return err
	}
	pods, err := perform(ctx, u.x, u.x.reading("MappedPods"), func(ctx context.Context) ([]string, error) {
		return u.blocks.MappedPods(ctx, path)
	})
	if err != nil {
		return fmt.Errorf("who has the device is not known: %w", err)
	}
	if len(pods) > 0 {
		return fmt.Errorf("the device is still bound at %q for pods %q: %w", path, pods, volume.ErrInUse)
	}
	return nil
}

// tearDownDevice undoes what SetUpDevice did, removes the directory of the binds, and asks whether the device is free.
func (u *unmappingDevice) tearDownDevice(ctx context.Context, unmapper volume.BlockVolumeUnmapper, path string) error {
	u.undoing = u.intent(path)
	if err := u.intend(ctx, u.x, u.undoing); err != nil {
		return err
	}
	if custom, ok := unmapper.(volume.CustomBlockVolumeUnmapper); ok {
		args := volume.TearDownDeviceArgs{MapPath: path, DevicePath: u.v.DevicePath}
		u.x.failed = u.unstageFailed
		err := u.x.change(ctx, "TearDownDevice", func(ctx context.Context) error { return custom.TearDownDevice(ctx, args) })
		if err != nil {
			return err
		}
	}
	u.x.failed = u.halfDone
	if err := u.x.change(ctx, "RemoveMapPath", func(ctx context.Context) error { return u.blocks.RemoveMapPath(ctx, path) }); err != nil {
		return err
	}
	if err := u.checkRootAfter(ctx, u.x, "RemoveMapPath"); err != nil {
		return err
	}
	if err := u.checkClosed(ctx); err != nil {
		return err
	}
	return u.undone(ctx)
}
