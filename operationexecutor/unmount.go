package operationexecutor

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// unmounting is one unmount operation.
type unmounting struct {
	*generator
	x     *execution
	v     MountedVolume
	state ActualStateOfWorldMounterUpdater

	undoing Intent // set once it is on record
}

// GenerateUnmountVolumeFunc implements [OperationGenerator].
func (g *generator) GenerateUnmountVolumeFunc(v MountedVolume, actualState ActualStateOfWorldMounterUpdater) *Operation {
	info := OperationInfo{Kind: OpUnmount, PluginName: v.PluginName, VolumeName: v.VolumeName, PodName: v.PodName}
	return newOperation(info, &unmounting{generator: g, v: v, state: actualState})
}

func (u *unmounting) run(ctx context.Context, x *execution) error {
	u.x = x
	at, err := u.prepare(ctx)
	if err != nil {
		return err
	}
	if err := u.cleanSubpaths(ctx); err != nil {
		return err
	}
	return u.tearDown(ctx, at)
}

// ended records the result of the operation.
func (u *unmounting) ended(err error) error {
	object, name := eitherObject(u.v.Pod, u.v.VolumeSpec), u.v.InnerVolumeSpecName
	if err != nil {
		u.event(object, v1.EventTypeWarning, reasonFailedUnmount, "unmounting volume %q failed: %v", name, err)
		return err
	}
	u.succeeded(object, reasonSuccessfulUnmountVolume, "volume %q is unmounted", name)
	return nil
}

// setUpAt is the set-up to be torn down.
type setUpAt struct {
	unmounter volume.Unmounter
	path      string
}

// prepare gets the unmounter and the path from the plugin.
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

// cleanSubpaths removes the sub-paths of the volume from the pod's containers. If that fails, the volume and its state stay as they
// were.
func (u *unmounting) cleanSubpaths(ctx context.Context) error {
	if u.subpaths == nil {
		return nil
	}
	u.x.failed = func(_ context.Context, err error) error {
		return fmt.Errorf("it is not torn down as long as parts of it are mounted for containers: %w", err)
	}
	err := u.x.change(ctx, "CleanSubpaths", func(ctx context.Context) error {
		return u.subpaths.CleanSubpaths(ctx, u.v.PodUID, u.v.PluginName, u.v.InnerVolumeSpecName)
	})
	if err != nil {
		return err
	}
	u.x.failed = nil
	return nil
}

func (u *unmounting) tearDown(ctx context.Context, at setUpAt) error {
	u.undoing = u.intent(at.path)
	if err := u.intend(ctx, u.x, u.undoing); err != nil {
		return err
	}
	u.x.failed = u.tearDownFailed
	err := u.x.change(ctx, "TearDown", func(ctx context.Context) error {
		return at.unmounter.TearDown(u.callContext(ctx, u.undoing))
	})
	err = u.directoryKept(eitherObject(u.v.Pod, u.v.VolumeSpec), u.v.InnerVolumeSpecName, err)
	if err != nil {
		return err
	}
	if err := u.checkUndone(ctx, u.x, "TearDown", at.path); err != nil {
		return err
	}
	return u.undone(ctx)
}

// undone records that the pod does not have the volume any more.
func (u *unmounting) undone(ctx context.Context) error {
	u.x.failed = nil
	if err := u.state.MarkVolumeAsUnmounted(u.v.PodName, u.v.VolumeName); err != nil {
		u.conclude(ctx, u.x, u.undoing, IntentUncertain)
		return err
	}
	u.conclude(ctx, u.x, u.undoing, IntentForgotten)
	return nil
}

// tearDownFailed records that the volume may be half torn down, whatever the class of err, so it is set up again before
// use. If the plugin was never called, the state stays.
func (u *unmounting) tearDownFailed(ctx context.Context, err error) error {
	if notCalled(err) {
		u.conclude(ctx, u.x, u.undoing, effectState(u.state.GetVolumeMountState(u.v.VolumeName, u.v.PodName)).end())
		return err
	}
	return u.halfDone(ctx, err)
}

// halfDone records that the volume may be half torn down.
func (u *unmounting) halfDone(ctx context.Context, err error) error {
	u.conclude(ctx, u.x, u.undoing, IntentUncertain)
	return uncertainToo(err, u.state.MarkVolumeMountAsUncertain(u.v))
}

func (u *unmounting) intent(path string) Intent {
	return Intent{
		Kind: u.x.op.kind(), VolumeName: u.v.VolumeName, PluginName: u.v.PluginName, Spec: u.v.VolumeSpec,
		PodUID: u.v.PodUID, Pod: podKey(u.v.Pod), OuterVolumeSpecNames: u.v.OuterVolumeSpecNames,
		DeviceMountPath: u.v.DeviceMountPath, MountPath: path,
	}
}
