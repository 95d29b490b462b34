package operationexecutor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// errNoBlockMapper is the error of every operation on a block volume if no BlockMapper is given.
var errNoBlockMapper = fmt.Errorf("this program maps no block devices (GeneratorOptions.BlockMapper): %w", volume.ErrUnsupported)

// mapping is one map operation. Its staging path is the volume's global map path, its path the pod's link.
type mapping struct {
	mounting
	mapDir, linkName string
	stagePath        string // the plugin's own staging path; empty when it has none
	podDevicePath    string // the device that the plugin has for this pod alone; empty when it has none
}

// GenerateMapVolumeFunc implements [OperationGenerator].
func (g *generator) GenerateMapVolumeFunc(v VolumeToMount, options MountOptions, actualState ActualStateOfWorldMounterUpdater) *Operation {
	info := OperationInfo{Kind: OpMap, PluginName: v.PluginName, VolumeName: v.VolumeName, PodName: v.PodName}
	return newOperation(info, &mapping{mounting: mounting{generator: g, v: v, options: options, state: actualState, devicePath: v.DevicePath}})
}

// ended writes an event when the operation failed.
func (m *mapping) ended(err error) error {
	if err != nil {
		m.event(podObject(m.v.Pod), v1.EventTypeWarning, reasonFailedMapVolume,
			"mapping volume %q failed: %v", m.v.VolumeSpec.Name(), err)
	}
	return err
}

func (m *mapping) run(ctx context.Context, x *execution) error {
	m.x = x
	if err := m.check(ctx); err != nil {
		return err
	}
	if err := m.prepare(ctx); err != nil {
		return err
	}
	if err := m.setUpDevice(ctx); err != nil {
		return err
	}
	return m.mapPod(ctx)
}

// check refuses volumes that cannot be mapped, before any call of the plugin.
func (m *mapping) check(ctx context.Context) error {
	switch {
	case m.blocks == nil:
		return errNoBlockMapper
	case !volume.IsBlock(m.v.VolumeSpec):
		return fmt.Errorf("the volume does not have volumeMode Block and cannot be mapped: %w", volume.ErrUnsupported)
	}
	if err := m.checkNodeAffinity(ctx, m.x, m.v.VolumeSpec); err != nil {
		return err
	}
	return m.checkSinglePod()
}

// prepare gets the mapper and the paths from the plugin. It changes nothing.
func (m *mapping) prepare(ctx context.Context) error {
	m.spec = m.copyOf(m.x, m.v.VolumeSpec)
	plugin, err := find(ctx, m.x, func() (volume.BlockVolumePlugin, error) { return m.plugins.FindMapperPluginBySpec(m.spec) })
	if err != nil {
		return err
	}
	m.mapper, err = construct(ctx, m.x, "NewBlockVolumeMapper", func() (volume.BlockVolumeMapper, error) {
		return plugin.NewBlockVolumeMapper(m.spec, m.pod())
	})
	if err != nil {
		return err
	}
	m.staging.path, err = construct(ctx, m.x, "GetGlobalMapPath", func() (string, error) { return m.mapper.GetGlobalMapPath(m.spec) })
	if err != nil {
		return err
	}
	link, err := linkOf(ctx, m.x, m.mapper)
	if err != nil {
		return err
	}
	m.mapDir, m.linkName = link.dir, link.name
	m.path = filepath.Join(link.dir, link.name)
	if custom, ok := m.mapper.(volume.CustomBlockVolumeMapper); ok {
		m.stagePath, err = construct(ctx, m.x, "GetStagingPath", func() (string, error) { return custom.GetStagingPath(), nil })
		if err != nil {
			return err
		}
	}
	return m.prepareAttacher(ctx)
}

// link is where a pod's link to its device is.
type link struct{ dir, name string }

func linkOf(ctx context.Context, x *execution, v volume.BlockVolume) (link, error) {
	return construct(ctx, x, "GetPodDeviceMapPath", func() (link, error) {
		dir, name := v.GetPodDeviceMapPath()
		return link{dir, name}, nil
	})
}

// setUpDevice waits for the device and prepares it for the first pod. awaitDevice writes its intent.
func (m *mapping) setUpDevice(ctx context.Context) error {
	if m.state.GetDeviceMountState(m.v.VolumeName) == DeviceGloballyMounted {
		return m.waitOnly(ctx)
	}
	if err := m.awaitDevice(ctx); err != nil {
		return err
	}
	if custom, ok := m.mapper.(volume.CustomBlockVolumeMapper); ok {
		m.x.failed = m.setUpDeviceFailed
		err := m.x.change(ctx, "SetUpDevice", func(ctx context.Context) error {
			_, err := custom.SetUpDevice(ctx, volume.SetUpDeviceArgs{DevicePath: m.devicePath})
			return err
		})
		if err != nil {
			return err
		}
		if err := m.checkRootAfter(ctx, m.x, "SetUpDevice"); err != nil {
			return err
		}
	}
	return m.staged(ctx)
}

// setUpDeviceFailed records the state of the staging after SetUpDevice failed.
func (m *mapping) setUpDeviceFailed(ctx context.Context, err error) error {
	return m.stageFailed(ctx, m.uncertainIfReplaced(ctx, m.x, m.afterWait(err)))
}

// mapPod maps the device for the pod.
func (m *mapping) mapPod(ctx context.Context) error {
	had := m.isMountedInState() // Then this is only a refresh.
	m.intent = m.podIntent()
	if err := m.intend(ctx, m.x, m.intent); err != nil {
		return err
	}
	m.x.failed = m.mapPodDeviceFailed
	if err := m.mapPodDevice(ctx); err != nil {
		return err
	}
	m.x.failed = m.bindFailed
	if err := m.bind(ctx); err != nil {
		return err
	}
	if err := m.checkRootAfter(ctx, m.x, "MapDevice"); err != nil {
		return err
	}
	m.x.failed = m.setUpUncertain
	if err := m.state.MarkVolumeAsMounted(m.mounted()); err != nil {
		return fmt.Errorf("volume is mapped, but the actual state does not take it: %w", err)
	}
	m.conclude(ctx, m.x, m.intent, IntentDone)
	if !had {
		m.event(podObject(m.v.Pod), v1.EventTypeNormal, reasonSuccessfulMountVolume,
			"volume %q is mapped: device %q at %q, linked at %q", m.v.VolumeSpec.Name(), m.boundDevice(), m.staging.path, m.path)
	}
	return nil
}

// bindFailed records that the mapping must be undone: the plugin had made the device ready for the pod before the failure.
func (m *mapping) bindFailed(ctx context.Context, err error) error {
	return m.podFailed(ctx, volume.Uncertain(err))
}

// mapPodDeviceFailed records the state of the mapping after MapPodDevice failed. Even if the plugin has undone its part,
// the bind mount, link and lock of an earlier attempt may exist, and the plugin does not know them.
func (m *mapping) mapPodDeviceFailed(ctx context.Context, err error) error {
	if m.state.GetVolumeMountState(m.v.VolumeName, m.v.PodName) == VolumeMountUncertain {
		err = volume.Uncertain(err)
	}
	return m.podFailed(ctx, m.uncertainIfReplaced(ctx, m.x, err))
}

// mapPodDevice lets the plugin make the device ready for the pod. If the plugin returns a path, that device is bound.
func (m *mapping) mapPodDevice(ctx context.Context) error {
	custom, ok := m.mapper.(volume.CustomBlockVolumeMapper)
	if !ok {
		return nil
	}
	args := volume.MapPodDeviceArgs{DevicePath: m.devicePath, GlobalMapPath: m.staging.path, PodUID: m.pod().UID}
	path, err := perform(ctx, m.x, m.x.changing("MapPodDevice"), func(ctx context.Context) (string, error) {
		return custom.MapPodDevice(ctx, args)
	})
	if err != nil {
		return err
	}
	m.podDevicePath = path
	return nil
}

// bind binds the device for the pod, and expands it if the volume is larger by now.
func (m *mapping) bind(ctx context.Context) error {
	if err := m.resolve(ctx); err != nil {
		return err
	}
	d := DeviceMapping{
		DevicePath: m.boundDevice(), GlobalMapPath: m.staging.path, PodMapDir: m.mapDir, LinkName: m.linkName, PodUID: m.pod().UID,
	}
	if err := m.x.change(ctx, "MapDevice", func(ctx context.Context) error { return m.blocks.MapDevice(ctx, d) }); err != nil {
		return err
	}
	if m.isMountedInState() {
		return nil // The pod has the volume already, so it is expanded as a volume in use.
	}
	expansion := nodeExpansion{generator: m.generator, x: m.x, v: m.v, state: m.state, paths: volume.NodeResizeOptions{
		DevicePath: m.boundDevice(), DeviceMountPath: m.path, DeviceStagePath: m.stagePath,
	}}
	return expansion.duringMount(ctx)
}

// boundDevice is the path of the device that is bound for the pod.
func (m *mapping) boundDevice() string { return cmp.Or(m.podDevicePath, m.devicePath) }

// resolve follows the links of the path of the device that is bound. The actual state keeps the resolved path, because unmapping
// needs it. It keeps the path of the attachment where the pod has a device of its own: WaitForAttach of the next pod needs that.
func (m *mapping) resolve(ctx context.Context) error {
	device := m.boundDevice()
	if device == "" {
		return errors.New("the path of the volume's device is empty: neither WaitForAttach nor MapPodDevice returned one")
	}
	path, err := perform(ctx, m.x, m.x.reading("ResolveDevice"), func(ctx context.Context) (string, error) {
		return m.blocks.ResolveDevice(ctx, device)
	})
	if err != nil {
		return fmt.Errorf("device %q: %w", device, err)
	}
	if m.podDevicePath != "" && m.devicePath != "" {
		m.podDevicePath = path
		return nil
	}
	m.devicePath, m.podDevicePath = path, ""
	return m.state.MarkDeviceAsMounted(m.v.VolumeName, path, m.staging.path, m.v.SELinuxLabel)
}
