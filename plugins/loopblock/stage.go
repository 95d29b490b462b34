package loopblock

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/volume"
)

// NewDeviceMounter implements volume.DeviceMountableVolumePlugin.
func (p *Plugin) NewDeviceMounter() (volume.DeviceMounter, error) { return &node{p}, nil }

// NewDeviceUnmounter implements volume.DeviceMountableVolumePlugin.
func (p *Plugin) NewDeviceUnmounter() (volume.DeviceUnmounter, error) { return &node{p}, nil }

// CanDeviceMount implements volume.DeviceMountableVolumePlugin: every volume is staged but one that is mapped.
func (p *Plugin) CanDeviceMount(spec *volume.Spec) (bool, error) {
	src, err := sourceOf(spec)
	return err == nil && !src.block, err
}

// SetUpIsMount implements volume.MountingVolumePlugin.
func (p *Plugin) SetUpIsMount(*volume.Spec) bool { return true }

// MountDeviceIsMount implements volume.MountingVolumePlugin.
func (p *Plugin) MountDeviceIsMount(*volume.Spec) bool { return true }

// GetDeviceMountRefs implements volume.DeviceMountableVolumePlugin.
func (p *Plugin) GetDeviceMountRefs(ctx context.Context, deviceMountPath string) ([]string, error) {
	return p.mounts.mounter.GetMountRefs(ctx, deviceMountPath)
}

// GetDeviceMountPath returns {root}/plugins/volumekit.io/loop-block/mounts/{handle}.
func (n *node) GetDeviceMountPath(spec *volume.Spec) (string, error) {
	src, err := filesystemOf(spec)
	if err != nil {
		return "", err
	}
	return n.plugin.mounts.stagingPath(src.handle), nil
}

// MountDevice checks the filesystem on devicePath, which must be the device of the volume's image, and mounts it at
// deviceMountPath, which must be what GetDeviceMountPath returns. Something else that is mounted there is an error that
// matches mount.ErrForeign.
func (n *node) MountDevice(
	ctx context.Context, spec *volume.Spec, devicePath, deviceMountPath string, _ volume.DeviceMounterArgs,
) error {
	src, err := filesystemOf(spec)
	if err != nil {
		return err
	}
	if want := n.plugin.mounts.stagingPath(src.handle); deviceMountPath != want {
		return fmt.Errorf("volume %q is staged at %q and not at %q: %w", src.handle, want, deviceMountPath, volume.ErrInvalid)
	}
	if err := n.stage(ctx, src, devicePath, deviceMountPath); err != nil {
		return fmt.Errorf("staging volume %q: %w", src.handle, classify(err))
	}
	return nil
}

func (n *node) stage(ctx context.Context, src source, devicePath, target string) error {
	device, err := n.plugin.devices.at(ctx, src.handle, devicePath)
	if err != nil {
		return err
	}
	there, mounted, err := n.plugin.mounts.at(ctx, target)
	if err != nil {
		return err
	}
	if mounted {
		if !device.IsMountedAs(there) {
			return fmt.Errorf("%s is mounted at %q: unmount it first: %w", there.Source, target, mount.ErrForeign)
		}
		return n.plugin.freezes.thawStaged(ctx, src.handle)
	}
	fsType, err := n.plugin.filesystems.prepare(ctx, src, device)
	if err != nil {
		return err
	}
	err = n.plugin.mounts.mounter.Mount(ctx, mount.Request{
		Source: device.Path, Target: target, FSType: fsType, Options: src.stageOptions(),
	})
	if err != nil {
		err = n.plugin.mounts.explain(ctx, device.Path, fsType, err)
	}
	if src.readOnly && errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("it was not unmounted cleanly, and nothing is written to a read-only volume: stage it once for writing: %w", err)
	}
	if err == nil {
		err = n.plugin.freezes.thawStaged(ctx, src.handle)
	}
	if err == nil && !src.readOnly {
		n.plugin.filesystems.growStaged(ctx, device.Path, fsType, target)
	}
	return err
}

// explain names the filesystem beside which the one on a device cannot be mounted, if that is why.
func (m *mounts) explain(ctx context.Context, device, fsType string, err error) error {
	table, listErr := m.mounter.List(ctx)
	if listErr != nil {
		return err
	}
	return format.ExplainMount(ctx, device, fsType, table, err)
}

// UnmountDevice unmounts the staging directory and removes it. What is mounted there and is not the image of the volume is left
// alone, and is an error that matches mount.ErrForeign.
func (n *node) UnmountDevice(ctx context.Context, deviceMountPath string) error {
	if err := n.plugin.mounts.checkPath(deviceMountPath); err != nil {
		return err
	}
	if err := n.plugin.freezes.thawBeforeUnmount(ctx, filepath.Base(deviceMountPath)); err != nil {
		return classify(err)
	}
	return classify(n.plugin.mounts.unmountOwn(ctx, deviceMountPath, filepath.Base(deviceMountPath)))
}
