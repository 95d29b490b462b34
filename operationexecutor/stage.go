package operationexecutor

import (
	"context"
	"fmt"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/volume"
)

// This file holds the part of a mount operation that is about the device: wait for it and stage it.

// staging is what the device of a mount operation is handled with.
type staging struct {
	attacher volume.Attacher      // nil: the volume is not attached
	mounter  volume.DeviceMounter // nil: the volume is not staged
	path     string               // where it is staged
	mounts   bool                 // whether the staging is a mount, by the plugin's word
}

// prepareStaging asks the plugin for what handles the device.
func (m *mounting) prepareStaging(ctx context.Context) error {
	if err := m.prepareAttacher(ctx); err != nil {
		return err
	}
	if !m.v.PluginIsDeviceMountable {
		return nil
	}
	plugin, err := find(ctx, m.x, func() (volume.DeviceMountableVolumePlugin, error) {
		return m.plugins.FindDeviceMountablePluginBySpec(m.spec)
	})
	if err != nil {
		return err
	}
	if m.staging.mounter, err = construct(ctx, m.x, "NewDeviceMounter", plugin.NewDeviceMounter); err != nil {
		return err
	}
	m.staging.path, err = construct(ctx, m.x, "GetDeviceMountPath", func() (string, error) {
		return m.staging.mounter.GetDeviceMountPath(m.spec)
	})
	return err
}

// prepareAttacher asks the plugin for what waits for the device.
func (m *mounting) prepareAttacher(ctx context.Context) error {
	if !m.v.PluginIsAttachable {
		return nil
	}
	plugin, err := find(ctx, m.x, func() (volume.AttachableVolumePlugin, error) {
		return m.plugins.FindAttachablePluginBySpec(m.spec)
	})
	if err != nil {
		return err
	}
	m.staging.attacher, err = construct(ctx, m.x, "NewAttacher", plugin.NewAttacher)
	return err
}

// stage waits for the device and stages it where it is not staged.
func (m *mounting) stage(ctx context.Context) error {
	if m.staging.mounter == nil || m.state.GetDeviceMountState(m.v.VolumeName) == DeviceGloballyMounted {
		return m.waitOnly(ctx)
	}
	if err := m.awaitDevice(ctx); err != nil {
		return err
	}
	args := volume.DeviceMounterArgs{FsGroup: fsGroup(m.pod()), SELinuxLabel: m.v.SELinuxLabel}
	intent := m.deviceIntent()
	m.x.failed = m.mountDeviceFailed
	err := m.x.change(ctx, "MountDevice", func(ctx context.Context) error {
		return m.staging.mounter.MountDevice(m.callContext(ctx, intent), m.spec, m.devicePath, m.staging.path, args)
	})
	if err != nil {
		return err
	}
	if err := m.checkRootAfter(ctx, m.x, "MountDevice"); err != nil {
		return err
	}
	if m.staging.mounts {
		if err := m.checkDone(ctx, m.x, "MountDevice", m.staging.path); err != nil {
			return err
		}
	}
	return m.staged(ctx)
}

// mountDeviceFailed enters the state after MountDevice has failed, or has not made its mount.
func (m *mounting) mountDeviceFailed(ctx context.Context, err error) error {
	return m.stageFailed(ctx, m.uncertainIfMounted(ctx, m.x, m.staging.path, m.afterWait(err)))
}

// awaitDevice waits for a device that is to be staged, and returns when the intent to stage it is on record. The intent
// comes before the wait, in which many a plugin logs in to its server, and again with the device's path as soon as that is
// known.
func (m *mounting) awaitDevice(ctx context.Context) error {
	if err := m.intend(ctx, m.x, m.deviceIntent()); err != nil {
		return err
	}
	known := m.devicePath
	m.x.failed = m.waitFailed
	if err := m.waitForAttach(ctx); err != nil {
		return err
	}
	if known == m.devicePath {
		return nil
	}
	if err := m.intend(ctx, m.x, m.deviceIntent()); err != nil {
		return volume.Uncertain(err)
	}
	return nil
}

// waitFailed enters the state after a failed wait for a device that is to be staged. A wait that was abandoned, or that is
// uncertain by its own account, leaves the staging uncertain; any other that fails has begun nothing. One that succeeded may
// have logged in, and so what fails after it is uncertain too.
func (m *mounting) waitFailed(ctx context.Context, err error) error {
	if err = stillWaits(err); outcome.IsUncertain(err) {
		return m.stageFailed(ctx, err)
	}
	m.conclude(ctx, m.x, m.deviceIntent(), m.deviceState().end())
	return err
}

// stillWaits returns the error of a wait for a device: what still runs may still log in.
func stillWaits(err error) error {
	if len(outcome.Running(err)) > 0 {
		return volume.Uncertain(err)
	}
	return err
}

// afterWait returns the error of a call that should have followed a wait for the device. If the call was not made, the
// effect of the wait is not undone: the error is uncertain, so an UnmountDevice follows.
func (m *mounting) afterWait(err error) error {
	if m.staging.attacher != nil && notCalled(err) {
		return volume.Uncertain(err)
	}
	return err
}

// waitOnly waits for a device that is staged.
func (m *mounting) waitOnly(ctx context.Context) error {
	m.x.failed = func(_ context.Context, err error) error { return stillWaits(err) }
	return m.waitForAttach(ctx)
}

// waitForAttach waits for the device of a volume that is attached.
func (m *mounting) waitForAttach(ctx context.Context) error {
	attacher := m.staging.attacher
	if attacher == nil {
		return nil
	}
	c := m.x.reading("WaitForAttach")
	c.timeout = m.options.WaitForAttachTimeout
	if c.timeout <= 0 {
		c.timeout = m.x.executor.options.waitForAttach(m.x.pluginName())
	}
	path, err := perform(ctx, m.x, c, func(ctx context.Context) (string, error) {
		return attacher.WaitForAttach(ctx, m.spec, m.devicePath, m.pod())
	})
	if err == nil {
		m.devicePath = path
	}
	return err
}

// staged says that the volume is staged, or, of a block volume, that its device is set up.
func (m *mounting) staged(ctx context.Context) error {
	intent := m.deviceIntent()
	m.x.failed = m.stagedUncertain
	err := m.state.MarkDeviceAsMounted(m.v.VolumeName, intent.DevicePath, intent.DeviceMountPath, m.v.SELinuxLabel)
	if err != nil {
		return fmt.Errorf("volume is staged, but the actual state does not take it: %w", err)
	}
	m.x.failed = nil
	m.conclude(ctx, m.x, intent, IntentDone)
	return nil
}

// stagedUncertain records a staged volume as uncertain, because the state does not have it as staged.
func (m *mounting) stagedUncertain(ctx context.Context, err error) error {
	intent := m.deviceIntent()
	m.conclude(ctx, m.x, intent, IntentUncertain)
	return uncertainToo(err, m.state.MarkDeviceAsUncertain(m.v.VolumeName, intent.DevicePath, intent.DeviceMountPath, m.v.SELinuxLabel))
}

// stageFailed enters the state of the staging after a failure.
func (m *mounting) stageFailed(ctx context.Context, err error) error {
	intent := m.deviceIntent()
	f := failure{err: err, reconstructed: m.state.IsVolumeReconstructed(m.v.VolumeName, "")}
	err = f.apply(m.deviceState(), marks{
		uncertain: func() error {
			return m.state.MarkDeviceAsUncertain(m.v.VolumeName, intent.DevicePath, intent.DeviceMountPath, m.v.SELinuxLabel)
		},
		absent: func() error { return m.state.MarkDeviceAsUnmounted(m.v.VolumeName) },
	})
	m.conclude(ctx, m.x, intent, m.deviceState().end())
	return err
}

func (m *mounting) deviceState() effectState {
	return effectState(m.state.GetDeviceMountState(m.v.VolumeName))
}

// deviceIntent is the intent to stage the volume.
func (m *mounting) deviceIntent() Intent {
	return Intent{
		Kind: m.x.op.kind(), VolumeName: m.v.VolumeName, PluginName: m.x.pluginName(), Spec: m.v.VolumeSpec,
		DevicePath: m.devicePath, DeviceMountPath: m.staging.path, SELinuxMountContext: m.v.SELinuxLabel,
	}
}
