package operationexecutor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// unmountingDevice is one unmount-device operation.
type unmountingDevice struct {
	*generator
	x     *execution
	v     AttachedVolume
	state ActualStateOfWorldMounterUpdater

	undoing Intent // from when it is on record
}

// GenerateUnmountDeviceFunc implements [OperationGenerator].
func (g *generator) GenerateUnmountDeviceFunc(v AttachedVolume, actualState ActualStateOfWorldMounterUpdater) *Operation {
	info := OperationInfo{Kind: OpUnmountDevice, PluginName: v.PluginName, VolumeName: v.VolumeName}
	return newOperation(info, &unmountingDevice{generator: g, v: v, state: actualState})
}

func (u *unmountingDevice) run(ctx context.Context, x *execution) error {
	u.x = x
	at, err := u.prepare(ctx)
	if err != nil {
		return err
	}
	if err := u.checkUnused(ctx, at); err != nil {
		return err
	}
	return u.unstage(ctx, at)
}

// ended records what became of the operation.
func (u *unmountingDevice) ended(err error) error {
	object, name := volumeObject(u.v.VolumeSpec), string(u.v.VolumeName)
	if err != nil {
		u.event(object, v1.EventTypeWarning, reasonFailedUnmountDevice, "unstaging volume %q failed: %v", name, err)
		return err
	}
	u.succeeded(object, reasonSuccessfulUnmountDevice, "volume %q is unstaged", name)
	return nil
}

// stagedAt is a staging that is to be undone.
type stagedAt struct {
	plugin    volume.DeviceMountableVolumePlugin
	unmounter volume.DeviceUnmounter
	path      string
}

// prepare asks the plugin for what unstages.
func (u *unmountingDevice) prepare(ctx context.Context) (at stagedAt, err error) {
	at.plugin, err = find(ctx, u.x, func() (volume.DeviceMountableVolumePlugin, error) {
		return u.plugins.FindDeviceMountablePluginByName(u.v.PluginName)
	})
	if err != nil {
		return at, err
	}
	if at.unmounter, err = construct(ctx, u.x, "NewDeviceUnmounter", at.plugin.NewDeviceUnmounter); err != nil {
		return at, err
	}
	at.path, err = u.path(ctx, at.plugin)
	return at, err
}

// path returns where the volume is staged: where it was, or where the plugin would stage it.
func (u *unmountingDevice) path(ctx context.Context, plugin volume.DeviceMountableVolumePlugin) (string, error) {
	if u.v.DeviceMountPath != "" {
		return u.v.DeviceMountPath, nil
	}
	if u.v.VolumeSpec == nil {
		return "", errors.New("neither the path at which the volume is staged nor its spec is known")
	}
	spec := u.copyOf(u.x, u.v.VolumeSpec)
	mounter, err := construct(ctx, u.x, "NewDeviceMounter", plugin.NewDeviceMounter)
	if err != nil {
		return "", err
	}
	return construct(ctx, u.x, "GetDeviceMountPath", func() (string, error) { return mounter.GetDeviceMountPath(spec) })
}

// checkUnused refuses while the volume has users, now that the operation has the volume for itself: pods that the actual
// state knows, and mounts that the kernel knows.
func (u *unmountingDevice) checkUnused(ctx context.Context, at stagedAt) error {
	if err := checkNoPods(u.state, u.v.VolumeName); err != nil {
		return err
	}
	refs, err := perform(ctx, u.x, u.x.reading("GetDeviceMountRefs"), func(ctx context.Context) ([]string, error) {
		return at.plugin.GetDeviceMountRefs(ctx, at.path)
	})
	if err != nil {
		return err
	}
	refs = slices.DeleteFunc(slices.Clone(refs), func(ref string) bool { return sameStaging(ref, at.path) })
	if len(refs) > 0 {
		return fmt.Errorf("what is staged at %q is still mounted at %q: %w", at.path, refs, volume.ErrInUse)
	}
	return nil
}

// checkNoPods refuses while state knows pods that have the volume, if it knows such things.
func checkNoPods(state any, name v1.UniqueVolumeName) error {
	users, ok := state.(VolumeUsers)
	if !ok {
		return nil
	}
	if pods := users.PodsOfVolume(name); len(pods) > 0 {
		return fmt.Errorf("pods %q still have the volume: %w", pods, volume.ErrInUse)
	}
	return nil
}

// sameStaging reports whether ref is the staging itself, seen through another mount of the root directory: it then ends
// as path does from "/plugins/" on.
func sameStaging(ref, path string) bool {
	const plugins = "/plugins/"
	if i := strings.LastIndex(path, plugins); i >= 0 {
		return strings.HasSuffix(ref, path[i:])
	}
	return ref == path
}

func (u *unmountingDevice) unstage(ctx context.Context, at stagedAt) error {
	u.undoing = u.intent(at.path)
	if err := u.intend(ctx, u.x, u.undoing); err != nil {
		return err
	}
	u.x.failed = u.unstageFailed
	err := u.x.change(ctx, "UnmountDevice", func(ctx context.Context) error {
		return at.unmounter.UnmountDevice(u.callContext(ctx, u.undoing), at.path)
	})
	err = u.directoryKept(volumeObject(u.v.VolumeSpec), string(u.v.VolumeName), err)
	if err != nil {
		return err
	}
	if err := u.checkUndone(ctx, u.x, "UnmountDevice", at.path); err != nil {
		return err
	}
	if err := u.checkClosed(ctx); err != nil {
		return err
	}
	return u.undone(ctx)
}

// undone says that the volume is not staged any more.
func (u *unmountingDevice) undone(ctx context.Context) error {
	u.x.failed = nil
	if err := u.state.MarkDeviceAsUnmounted(u.v.VolumeName); err != nil {
		u.conclude(ctx, u.x, u.undoing, IntentUncertain)
		return err
	}
	u.conclude(ctx, u.x, u.undoing, IntentForgotten)
	return nil
}

func (u *unmountingDevice) intent(path string) Intent {
	return Intent{
		Kind: u.x.op.kind(), VolumeName: u.v.VolumeName, PluginName: u.v.PluginName, Spec: u.v.VolumeSpec,
		DevicePath: u.v.DevicePath, DeviceMountPath: path,
	}
}

// checkClosed asks whether the device is still open, in another mount namespace for example.
func (u *unmountingDevice) checkClosed(ctx context.Context) error {
	if u.deviceUse == nil || u.v.DevicePath == "" {
		return nil
	}
	return u.x.port(ctx, "DeviceOpened", func(ctx context.Context) error {
		opened, err := u.deviceUse.DeviceOpened(ctx, u.v.DevicePath)
		if err != nil {
			return fmt.Errorf("whether device %q is still open is not known: %w", u.v.DevicePath, err)
		}
		if opened {
			return fmt.Errorf("device %q is still open although nothing should use it: %w", u.v.DevicePath, volume.ErrInUse)
		}
		return nil
	})
}

// unstageFailed records that the volume may be half unstaged, whatever the class of err, so it is staged again before use.
// If the plugin was never called, the state stays.
func (u *unmountingDevice) unstageFailed(ctx context.Context, err error) error {
	if notCalled(err) {
		u.conclude(ctx, u.x, u.undoing, effectState(u.state.GetDeviceMountState(u.v.VolumeName)).end())
		return err
	}
	return u.halfDone(ctx, err)
}

// halfDone says that what is staged may be half undone.
func (u *unmountingDevice) halfDone(ctx context.Context, err error) error {
	u.conclude(ctx, u.x, u.undoing, IntentUncertain)
	return uncertainToo(err, u.state.MarkDeviceAsUncertain(u.v.VolumeName, u.v.DevicePath, u.undoing.DeviceMountPath, u.v.SELinuxMountContext))
}
