package loopblock

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"syscall"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/loop"
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
	return p.mounter.GetMountRefs(ctx, deviceMountPath)
}

// GetDeviceMountPath returns {root}/plugins/volumekit.io/loop-block/mounts/{handle}.
func (n *node) GetDeviceMountPath(spec *volume.Spec) (string, error) {
	src, err := filesystemOf(spec)
	if err != nil {
		return "", err
	}
	return n.plugin.stagingPath(src.handle), nil
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
	if want := n.plugin.stagingPath(src.handle); deviceMountPath != want {
		return fmt.Errorf("volume %q is staged at %q and not at %q: %w", src.handle, want, deviceMountPath, volume.ErrInvalid)
	}
	if err := n.plugin.stage(ctx, src, devicePath, deviceMountPath); err != nil {
		return fmt.Errorf("staging volume %q: %w", src.handle, classify(err))
	}
	return nil
}

func (p *Plugin) stage(ctx context.Context, src source, devicePath, target string) error {
	device, err := p.deviceAt(ctx, src.handle, devicePath)
	if err != nil {
		return err
	}
	there, mounted, err := p.mountAt(ctx, target)
	if err != nil {
		return err
	}
	if mounted {
		if !device.IsMountedAs(there) {
			return fmt.Errorf("%s is mounted at %q: unmount it first: %w", there.Source, target, mount.ErrForeign)
		}
		return nil
	}
	fsType, err := p.prepare(ctx, src, device)
	if err != nil {
		return err
	}
	err = p.mounter.Mount(ctx, mount.Request{
		Source: device.Path, Target: target, FSType: fsType, Options: src.stageOptions(),
	})
	if err != nil {
		err = p.explain(ctx, device.Path, fsType, err)
	}
	if src.readOnly && errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("it was not unmounted cleanly, and nothing is written to a read-only volume: stage it once for writing: %w", err)
	}
	if err == nil && !src.readOnly {
		p.growStaged(ctx, device.Path, fsType, target)
	}
	return err
}

// explain names the filesystem beside which the one on a device cannot be mounted, if that is why.
func (p *Plugin) explain(ctx context.Context, device, fsType string, err error) error {
	table, listErr := p.mounter.List(ctx)
	if listErr != nil {
		return err
	}
	return format.ExplainMount(ctx, device, fsType, table, err)
}

// prepare returns the filesystem on a device after it was checked, and repaired where that is safe. It never formats.
func (p *Plugin) prepare(ctx context.Context, src source, device loop.Device) (string, error) {
	found, err := format.Probe(ctx, device.Path)
	if err != nil {
		return "", err
	}
	switch {
	case !slices.Contains(fsTypes(), found.Type):
		return "", fmt.Errorf("the image holds %s: an image is formatted only when it is provisioned: %w", found, ErrNoFilesystem)
	case src.fsType != "" && src.fsType != found.Type:
		return "", fmt.Errorf("the image holds %s and the volume's fsType is %s: %w", found, src.fsType, ErrNoFilesystem)
	case src.readOnly:
		return found.Type, nil
	}
	return found.Type, p.check(ctx, src, device, found.Type)
}

// check runs the filesystem's check on a device that nobody has mounted, elsewhere or in another mount namespace. Where the
// program is missing, the kernel replays the journal alone, as it does for Kubernetes.
func (p *Plugin) check(ctx context.Context, src source, device loop.Device, fsType string) error {
	mounted, err := p.loops.AwaitUnclaimed(ctx, device.Path)
	if err != nil || mounted {
		return err
	}
	result, err := format.CheckKept(ctx, device.Path, fsType, keeper{plugin: p, handle: src.handle})
	if errors.Is(err, format.ErrNoTool) {
		p.logger.Warn("the filesystem is mounted without a check", "device", device.Path, "fstype", fsType, "err", err)
		return nil
	}
	if err == nil && result.Repaired {
		p.logger.Warn("the filesystem was repaired", "device", device.Path, "image", device.BackingPath)
		p.tellRepaired(src, device)
	}
	if err == nil && !result.Repaired && result.Errors > 0 {
		p.logger.Warn("the filesystem had errors on record", "device", device.Path, "image", device.BackingPath, "errors", result.Errors)
		p.tellErrors(src, device, result.Errors)
	}
	if err != nil {
		return err
	}
	return p.growUnused(ctx, src, device, fsType)
}

// EventFilesystemRepaired is the reason of the event about a PersistentVolume whose filesystem had errors that were repaired
// before it was mounted.
const EventFilesystemRepaired = "FilesystemRepaired"

// EventFilesystemErrors is the reason of the event about a PersistentVolume whose filesystem had errors on record, which the
// kernel had found while it was mounted, and in which a check has found nothing to repair.
const EventFilesystemErrors = "FilesystemErrors"

func (p *Plugin) tellErrors(src source, device loop.Device, count int) {
	if p.options.Events != nil {
		p.options.Events.Eventf(src.pv, v1.EventTypeWarning, EventFilesystemErrors,
			"the kernel had found %d errors in the filesystem in image %q while it was used; a check has found nothing to repair: what was written then may be missing",
			count, device.BackingPath)
	}
}

func (p *Plugin) tellRepaired(src source, device loop.Device) {
	if p.options.Events != nil {
		p.options.Events.Eventf(src.pv, v1.EventTypeWarning, EventFilesystemRepaired,
			"the filesystem in image %q had errors, which were repaired: what was written last may be missing", device.BackingPath)
	}
}

// EventFilesystemNotGrown is the reason of the event about a PersistentVolume whose filesystem is smaller than its image, since it
// could not be made larger before it was mounted.
const EventFilesystemNotGrown = "FilesystemNotGrown"

func (p *Plugin) tellNotGrown(src source, device loop.Device, cause error) {
	if p.options.Events != nil {
		p.options.Events.Eventf(src.pv, v1.EventTypeWarning, EventFilesystemNotGrown,
			"the filesystem in image %q is mounted smaller than the image, and is to grow when the volume is staged next: %v",
			device.BackingPath, cause)
	}
}

// UnmountDevice unmounts the staging directory and removes it. What is mounted there and is not the image of the volume is left
// alone, and is an error that matches mount.ErrForeign.
func (n *node) UnmountDevice(ctx context.Context, deviceMountPath string) error {
	if err := n.plugin.checkStagingPath(deviceMountPath); err != nil {
		return err
	}
	return classify(n.plugin.takeOff(ctx, deviceMountPath, filepath.Base(deviceMountPath)))
}
