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
func (m *mounting) stage(ctx context.Context, err error) error {
	switch {
	case err != nil:
		return err
	case m.staging.mounter == nil || m.state.GetDeviceMountState(m.v.VolumeName) == DeviceGloballyMounted:
		return m.waitForAttach(ctx, m.setUp)
	}
	return m.awaitDevice(ctx, m.mountDevice)
}

func (m *mounting) mountDevice(_ context.Context, err error) error {
	if err != nil {
		return err
	}
	args := volume.DeviceMounterArgs{FsGroup: fsGroup(m.pod()), SELinuxLabel: m.v.SELinuxLabel}
	mounter, spec, device, path := m.staging.mounter, m.spec, m.devicePath, m.staging.path
	intent := m.deviceIntent()
	return m.x.thenCall(m.x.changing("MountDevice"), func(ctx context.Context) error {
		return mounter.MountDevice(m.callContext(ctx, intent), spec, device, path, args)
	}, m.mountDeviceCalled)
}

func (m *mounting) mountDeviceCalled(ctx context.Context, err error) error {
	if err == nil && m.staging.mounts {
		return m.thenCheckDone(ctx, m.x, "MountDevice", m.staging.path, m.isStaged)
	}
	return m.isStaged(ctx, err)
}

func (m *mounting) isStaged(ctx context.Context, err error) error {
	intent := m.deviceIntent()
	if err != nil {
		return m.stageFailed(ctx, intent, m.doubtFailure(ctx, m.x, intent.DeviceMountPath, m.afterWait(err)))
	}
	return m.setUp(ctx, m.staged(ctx, intent))
}

// awaitDevice waits for a device that is to be staged and goes on when the intent to stage it is on record. The intent
// comes before the wait, in which many a plugin logs in to its server, and again with the device's path as soon as that is
// known. A wait that was left behind, or that is uncertain by its own account, leaves the staging uncertain; any other that
// fails has begun nothing. One that succeeded may have logged in, and so what fails after it is uncertain too.
func (m *mounting) awaitDevice(ctx context.Context, next func(ctx context.Context, err error) error) error {
	if err := m.intend(ctx, m.x, m.deviceIntent()); err != nil {
		return err
	}
	known := m.devicePath
	return m.waitForAttach(ctx, func(ctx context.Context, err error) error { return next(ctx, m.waited(ctx, known, err)) })
}

// waited does what follows the wait for a device that is to be staged; known is the path that it had before.
func (m *mounting) waited(ctx context.Context, known string, err error) error {
	if err == nil && known != m.devicePath {
		if err = m.intend(ctx, m.x, m.deviceIntent()); err != nil {
			err = volume.Uncertain(err)
		}
	}
	if outcome.IsUncertain(err) {
		return m.stageFailed(ctx, m.deviceIntent(), err)
	}
	if err != nil {
		m.conclude(ctx, m.x, m.deviceIntent(), m.deviceState().end())
	}
	return err
}

// afterWait returns the error of a call that should have followed a wait for the device. When the call was not made, nobody
// has undone what the wait did: an UnmountDevice is to do so.
func (m *mounting) afterWait(err error) error {
	if m.staging.attacher != nil && notCalled(err) {
		return volume.Uncertain(err)
	}
	return err
}

func (m *mounting) waitForAttach(ctx context.Context, next func(ctx context.Context, err error) error) error {
	attacher := m.staging.attacher
	if attacher == nil {
		return next(ctx, nil)
	}
	c := m.x.asking("WaitForAttach")
	c.timeout = m.options.WaitForAttachTimeout
	if c.timeout <= 0 {
		c.timeout = m.x.executor.options.waitForAttach(m.x.pluginName())
	}
	known, spec, pod := m.devicePath, m.spec, m.pod()
	return then(m.x, c, func(ctx context.Context) (string, error) {
		return attacher.WaitForAttach(ctx, spec, known, pod)
	}, func(ctx context.Context, path string, err error) error {
		if err == nil {
			m.devicePath = path
		}
		if len(outcome.Running(err)) > 0 {
			err = volume.Uncertain(err) // What still runs may still log in.
		}
		return next(ctx, err)
	})
}

func (m *mounting) staged(ctx context.Context, intent Intent) error {
	err := m.state.MarkDeviceAsMounted(m.v.VolumeName, intent.DevicePath, intent.DeviceMountPath, m.v.SELinuxLabel)
	if err != nil {
		m.conclude(ctx, m.x, intent, IntentUncertain)
		err = fmt.Errorf("volume is staged, but the actual state does not take it: %w", err)
		return uncertainToo(err, m.state.MarkDeviceAsUncertain(m.v.VolumeName, intent.DevicePath, intent.DeviceMountPath, m.v.SELinuxLabel))
	}
	m.conclude(ctx, m.x, intent, IntentDone)
	return nil
}

// stageFailed marks what the failure means for what is believed.
func (m *mounting) stageFailed(ctx context.Context, intent Intent, err error) error {
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

func (m *mounting) deviceState() believed {
	return believed(m.state.GetDeviceMountState(m.v.VolumeName))
}

// deviceIntent is the intent to stage the volume.
func (m *mounting) deviceIntent() Intent {
	return Intent{
		Kind: m.x.op.kind(), VolumeName: m.v.VolumeName, PluginName: m.x.pluginName(), Spec: m.v.VolumeSpec,
		DevicePath: m.devicePath, DeviceMountPath: m.staging.path, SELinuxMountContext: m.v.SELinuxLabel,
	}
}
