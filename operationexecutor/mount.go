package operationexecutor

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// mountKey is the whole volume when its pods share it, for then the operation may stage it.
func mountKey(v VolumeToMount) Key {
	if v.PluginIsAttachable || v.PluginIsDeviceMountable {
		return Key{Volume: v.VolumeName}
	}
	return Key{Volume: v.VolumeName, Pod: v.PodName}
}

// mounting is one mount operation.
type mounting struct {
	*generator
	x       *execution
	v       VolumeToMount
	options MountOptions
	state   ActualStateOfWorldMounterUpdater

	spec    *volume.Spec // as plugins get it
	mounter volume.Mounter
	mapper  volume.BlockVolumeMapper // of a block volume, in place of mounter
	path    string                   // where the mounter sets up
	mounts  bool                     // whether the set-up is a mount, by the plugin's word
	staging staging
	// intent is to set the volume up for the pod, from when it is on record.
	intent Intent
	// wasMounted says that the pod had the volume, which is only refreshed.
	wasMounted bool
	// devicePath is the device, as far as it is known.
	devicePath string
}

// GenerateMountVolumeFunc implements [OperationGenerator].
func (g *generator) GenerateMountVolumeFunc(v VolumeToMount, options MountOptions, actualState ActualStateOfWorldMounterUpdater) *Operation {
	info := OperationInfo{Kind: OpMount, PluginName: v.PluginName, VolumeName: v.VolumeName, PodName: v.PodName}
	return newOperation(info, &mounting{generator: g, v: v, options: options, state: actualState, devicePath: v.DevicePath})
}

func (m *mounting) run(ctx context.Context, x *execution) error {
	m.x = x
	if watcher, ok := m.state.(SetUpWatcher); ok {
		x.release = watcher.WatchSetUp(m.v.VolumeName, m.v.PodName)
	}
	if err := m.prepare(ctx); err != nil {
		return err
	}
	if err := m.check(ctx); err != nil {
		return err
	}
	if err := m.stage(ctx); err != nil {
		return err
	}
	return m.setUp(ctx)
}

// ended records what became of the operation.
func (m *mounting) ended(err error) error {
	switch {
	case err != nil:
		m.event(podObject(m.v.Pod), v1.EventTypeWarning, reasonFailedMount,
			"mounting volume %q failed: %v", m.v.VolumeSpec.Name(), err)
	case !m.wasMounted:
		m.succeeded(podObject(m.v.Pod), reasonSuccessfulMountVolume, "volume %q is mounted", m.v.VolumeSpec.Name())
	}
	return err
}

// prepare asks the plugin for all that will be called. It changes nothing.
func (m *mounting) prepare(ctx context.Context) error {
	m.spec = m.copyOf(m.x, m.v.VolumeSpec)
	plugin, err := find(ctx, m.x, func() (volume.VolumePlugin, error) { return m.plugins.FindPluginBySpec(m.spec) })
	if err != nil {
		return err
	}
	if err := m.queryMounts(ctx, plugin); err != nil {
		return err
	}
	m.mounter, err = construct(ctx, m.x, "NewMounter", func() (volume.Mounter, error) { return plugin.NewMounter(m.spec, m.pod()) })
	if err != nil {
		return err
	}
	m.path, err = construct(ctx, m.x, "GetPath", func() (string, error) { return m.mounter.GetPath(), nil })
	if err != nil {
		return err
	}
	return m.prepareStaging(ctx)
}

// queryMounts reads from the plugin which of its calls leave a mount.
func (m *mounting) queryMounts(ctx context.Context, plugin volume.VolumePlugin) (err error) {
	says := m.mountsOf(plugin)
	if says == nil {
		return nil
	}
	m.mounts, err = m.x.queryMount(ctx, "SetUpIsMount", func() bool { return says.SetUpIsMount(m.spec) })
	if err != nil || !m.v.PluginIsDeviceMountable {
		return err
	}
	m.staging.mounts, err = m.x.queryMount(ctx, "MountDeviceIsMount", func() bool { return says.MountDeviceIsMount(m.spec) })
	return err
}

// check refuses what cannot work before anything is changed.
func (m *mounting) check(ctx context.Context) error {
	if err := m.checkSpec(); err != nil {
		return err
	}
	if err := m.checkNodeAffinity(ctx, m.x, m.v.VolumeSpec); err != nil {
		return err
	}
	if err := m.checkSinglePod(); err != nil {
		return err
	}
	checker, ok := m.mounter.(volume.MountChecker)
	if !ok {
		return nil
	}
	return m.x.call(ctx, m.x.reading("CanMount"), checker.CanMount)
}

// checkSpec refuses a volume that is not a filesystem, and mount options that are malformed or not honoured.
func (m *mounting) checkSpec() error {
	filesystem, err := volume.CheckVolumeModeFilesystem(m.v.VolumeSpec)
	if err != nil {
		return err
	}
	if !filesystem {
		return fmt.Errorf("the volume has volumeMode Block and cannot be mounted: %w", volume.ErrUnsupported)
	}
	options := volume.MountOptionFromSpec(m.v.VolumeSpec)
	if len(options) > 0 && !m.plugins.SupportsMountOption(m.x.pluginName()) {
		return fmt.Errorf("plugin %q does not support mount options, and the volume has %s: remove them: %w",
			m.x.pluginName(), volume.OptionKeys(options), volume.ErrUnsupported)
	}
	return volume.CheckMountOptions(options)
}

// checkSinglePod refuses a second pod of a volume that only one pod may use.
func (m *mounting) checkSinglePod() error {
	users, ok := m.state.(VolumeUsers)
	if !ok || !singlePod(m.v.VolumeSpec) {
		return nil
	}
	for _, pod := range users.PodsOfVolume(m.v.VolumeName) {
		if pod != m.v.PodName {
			return fmt.Errorf("access mode ReadWriteOncePod allows one pod, and pod %q has the volume: %w", pod, volume.ErrInUse)
		}
	}
	return nil
}

// setUp sets the volume up for the pod, once it is staged.
func (m *mounting) setUp(ctx context.Context) error {
	args := m.mounterArgs()
	m.intent = m.podIntent()
	m.intent.SetUpArgs = &args
	if err := m.intend(ctx, m.x, m.intent); err != nil {
		return err
	}
	m.wasMounted = m.isMountedInState()
	m.x.failed = m.setUpFailed
	err := m.x.change(ctx, "SetUp", func(ctx context.Context) error {
		return m.mounter.SetUp(m.callContext(ctx, m.intent), args)
	})
	if err != nil {
		return err
	}
	m.x.failed = m.setUpUncertain
	if err := m.checkRootAfter(ctx, m.x, "SetUp"); err != nil {
		return err
	}
	if m.mounts {
		if err := m.checkDone(ctx, m.x, "SetUp", m.path); err != nil {
			return err
		}
	}
	if !m.wasMounted { // A volume that the pod has is expanded in use.
		if err := m.expand(ctx); err != nil {
			return err
		}
	}
	if err := m.state.MarkVolumeAsMounted(m.mounted()); err != nil {
		return fmt.Errorf("volume is set up, but the actual state does not take it: %w", err)
	}
	m.conclude(ctx, m.x, m.intent, IntentDone)
	return nil
}

// setUpUncertain says that the volume is set up, and that it is not as it should be.
func (m *mounting) setUpUncertain(ctx context.Context, err error) error {
	m.conclude(ctx, m.x, m.intent, IntentUncertain)
	return uncertainToo(err, m.state.MarkVolumeMountAsUncertain(m.mounted()))
}

func (m *mounting) expand(ctx context.Context) error {
	if !claimed(m.v.VolumeSpec) {
		return nil
	}
	expansion := nodeExpansion{generator: m.generator, x: m.x, v: m.v, state: m.state, paths: volume.NodeResizeOptions{
		DevicePath: m.devicePath, DeviceMountPath: m.path, DeviceStagePath: m.staging.path,
	}}
	return expansion.duringMount(ctx)
}

func (m *mounting) isMountedInState() bool {
	return m.state.GetVolumeMountState(m.v.VolumeName, m.v.PodName) == VolumeMounted
}

// setUpFailed enters the state after a failure of SetUp.
func (m *mounting) setUpFailed(ctx context.Context, err error) error {
	if !m.isMountedInState() { // Also one that was mounted and has become uncertain meanwhile.
		err = m.uncertainIfMounted(ctx, m.x, m.path, err)
	}
	return m.podFailed(ctx, err)
}

// podFailed enters the state of the pod's volume after a failure.
func (m *mounting) podFailed(ctx context.Context, err error) error {
	f := failure{err: err, reconstructed: m.state.IsVolumeReconstructed(m.v.VolumeName, m.v.PodName)}
	state := func() effectState { return effectState(m.state.GetVolumeMountState(m.v.VolumeName, m.v.PodName)) }
	err = f.apply(state(), marks{
		uncertain: func() error { return m.state.MarkVolumeMountAsUncertain(m.mounted()) },
		absent:    func() error { return m.state.MarkVolumeAsUnmounted(m.v.PodName, m.v.VolumeName) },
	})
	m.conclude(ctx, m.x, m.intent, state().end())
	return err
}

func (m *mounting) mounterArgs() volume.MounterArgs {
	name, pod := m.v.VolumeName, m.v.PodName
	args := m.v.MounterArgs()
	args.ReconstructedVolume = m.state.IsVolumeReconstructed(name, pod)
	args.IsRemount = m.options.IsRemount && m.state.GetVolumeMountState(name, pod) == VolumeMounted
	return args
}

// MounterArgs returns what the volume is set up with, but for what is known of an earlier set-up.
func (v *VolumeToMount) MounterArgs() volume.MounterArgs {
	pod := podOf(v)
	args := volume.MounterArgs{
		FsUser:       commonUser(pod),
		FsGroup:      fsGroup(pod),
		DesiredSize:  v.DesiredSizeLimit,
		PodUID:       string(pod.UID),
		SELinuxLabel: v.SELinuxLabel,
	}
	if sc := pod.Spec.SecurityContext; sc != nil {
		args.FSGroupChangePolicy = sc.FSGroupChangePolicy
	}
	return args
}

// mounted is what the state is told of the set-up.
func (m *mounting) mounted() MountedVolume {
	return MountedVolume{
		VolumeName: m.v.VolumeName, PodName: m.v.PodName, PodUID: m.pod().UID, Pod: m.v.Pod, VolumeSpec: m.v.VolumeSpec,
		OuterVolumeSpecNames: m.v.OuterVolumeSpecNames, Mounter: m.mounter, BlockVolumeMapper: m.mapper, MountPath: m.path, VolumeGidValue: m.v.VolumeGidValue,
		SELinuxMountContext: m.v.SELinuxLabel, Incarnation: m.v.Incarnation,
	}
}

// pod returns the pod, or one that holds no more than its UID.
func (m *mounting) pod() *v1.Pod { return podOf(&m.v) }

// podIntent is the intent to set the volume up for the pod.
func (m *mounting) podIntent() Intent {
	intent := m.deviceIntent()
	intent.PodUID, intent.MountPath = m.pod().UID, m.path
	intent.Pod, intent.OuterVolumeSpecNames = podKey(m.v.Pod), m.v.OuterVolumeSpecNames
	return intent
}
