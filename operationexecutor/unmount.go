package operationexecutor

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// unmounting is one unmount operation.
type unmounting struct {
	*Generator
	x     *execution
	v     MountedVolume
	state ActualStateOfWorldMounterUpdater

	at      setUpAt // of a volume that is torn down
	tearing Intent
}

// GenerateUnmountVolumeFunc implements [OperationGenerator].
func (g *Generator) GenerateUnmountVolumeFunc(v MountedVolume, actualState ActualStateOfWorldMounterUpdater) *Operation {
	info := OperationInfo{Kind: OpUnmount, PluginName: v.PluginName, VolumeName: v.VolumeName, PodName: v.PodName}
	return newOperation(info, func(ctx context.Context, x *execution) error {
		u := &unmounting{Generator: g, x: x, v: v, state: actualState}
		x.conclude = u.tell
		return gather(ctx, x, u.prepare, u.cleanSubpaths)
	})
}

// tell records what became of the operation.
func (u *unmounting) tell(err error) error {
	object, name := eitherObject(u.v.Pod, u.v.VolumeSpec), u.v.InnerVolumeSpecName
	if err != nil {
		u.event(object, v1.EventTypeWarning, ReasonFailedUnmount, "unmounting volume %q failed: %v", name, err)
		return err
	}
	u.succeeded(object, ReasonSuccessfulUnmountVolume, "volume %q is unmounted", name)
	return nil
}

// setUpAt is a set-up that is to be torn down.
type setUpAt struct {
	unmounter volume.Unmounter
	path      string
}

// prepare asks the plugin for what tears down.
func (u *unmounting) prepare(ctx context.Context) (at setUpAt, err error) {
	plugin, err := find(ctx, u.x, func() (volume.VolumePlugin, error) { return u.plugins.FindPluginByName(u.v.PluginName) })
	if err != nil {
		return at, err
	}
	at.unmounter, err = construct(ctx, u.x, "NewUnmounter", func() (volume.Unmounter, error) {
		return plugin.NewUnmounter(u.v.InnerVolumeSpecName, u.v.PodUID)
	})
	if err != nil {
		return at, err
	}
	at.path, err = construct(ctx, u.x, "GetPath", func() (string, error) { return at.unmounter.GetPath(), nil })
	return at, err
}

// cleanSubpaths takes the parts of the volume from the pod's containers. When that fails, the volume itself is what it
// was, and so is its state.
func (u *unmounting) cleanSubpaths(ctx context.Context, at setUpAt, err error) error {
	if err != nil {
		return err
	}
	if u.at = at; u.subpaths == nil {
		return u.tearDown(ctx, nil)
	}
	return u.x.thenCall(u.x.changing("CleanSubpaths"), func(ctx context.Context) error {
		return u.subpaths.CleanSubpaths(ctx, u.v.PodUID, u.v.PluginName, u.v.InnerVolumeSpecName)
	}, u.tearDown)
}

func (u *unmounting) tearDown(ctx context.Context, err error) error {
	if err != nil {
		return fmt.Errorf("it is not torn down as long as parts of it are mounted for containers: %w", err)
	}
	u.tearing = u.intent(u.at.path)
	if err := u.intend(ctx, u.x, u.tearing); err != nil {
		return err
	}
	return u.x.thenCall(u.x.changing("TearDown"), u.at.unmounter.TearDown, u.tornDown)
}

func (u *unmounting) tornDown(ctx context.Context, err error) error {
	err = u.directoryKept(eitherObject(u.v.Pod, u.v.VolumeSpec), u.v.InnerVolumeSpecName, err)
	if err != nil {
		return u.failed(ctx, u.tearing, err)
	}
	return u.thenCheckUndone(ctx, u.x, "TearDown", u.at.path, u.unmounted)
}

func (u *unmounting) unmounted(ctx context.Context, err error) error {
	if err != nil {
		return u.failed(ctx, u.tearing, err)
	}
	if err := u.state.MarkVolumeAsUnmounted(u.v.PodName, u.v.VolumeName); err != nil {
		u.conclude(ctx, u.x, u.tearing, IntentUncertain)
		return err
	}
	u.conclude(ctx, u.x, u.tearing, IntentForgotten)
	return nil
}

// failed says that the volume may be half torn down, whatever the class of err, so that it is set up again before it is
// used; unless the plugin was never called.
func (u *unmounting) failed(ctx context.Context, intent Intent, err error) error {
	if notCalled(err) {
		u.conclude(ctx, u.x, intent, believed(u.state.GetVolumeMountState(u.v.VolumeName, u.v.PodName)).end())
		return err
	}
	return u.halfDone(ctx, intent, err)
}

// halfDone says that the volume may be half taken away.
func (u *unmounting) halfDone(ctx context.Context, intent Intent, err error) error {
	u.conclude(ctx, u.x, intent, IntentUncertain)
	return uncertainToo(err, u.state.MarkVolumeMountAsUncertain(MarkVolumeOpts{
		VolumeName: u.v.VolumeName, PodName: u.v.PodName, PodUID: u.v.PodUID, Pod: u.v.Pod, VolumeSpec: u.v.VolumeSpec,
		OuterVolumeSpecNames: u.v.OuterVolumeSpecNames, Mounter: u.v.Mounter, BlockVolumeMapper: u.v.BlockVolumeMapper, VolumeGidValue: u.v.VolumeGidValue,
		SELinuxMountContext: u.v.SELinuxMountContext, Incarnation: u.v.Incarnation,
	}))
}

func (u *unmounting) intent(path string) Intent {
	return Intent{
		Kind: u.x.op.kind(), VolumeName: u.v.VolumeName, PluginName: u.v.PluginName, Spec: u.v.VolumeSpec,
		PodUID: u.v.PodUID, Pod: podKey(u.v.Pod), OuterVolumeSpecNames: u.v.OuterVolumeSpecNames,
		DeviceMountPath: u.v.DeviceMountPath, MountPath: path,
	}
}
