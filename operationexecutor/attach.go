package operationexecutor

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// attachKey is the whole volume when it may be attached to one node only, so that no second node gets it meanwhile.
func attachKey(v VolumeToAttach) Key {
	if volume.IsMultiAttachAllowed(v.VolumeSpec) {
		return Key{Volume: v.VolumeName, Node: v.NodeName}
	}
	return Key{Volume: v.VolumeName}
}

// attaching is one attach operation.
type attaching struct {
	*Generator
	x     *execution
	v     VolumeToAttach
	state ActualStateOfWorldAttacherUpdater
}

// GenerateAttachVolumeFunc implements [OperationGenerator].
func (g *Generator) GenerateAttachVolumeFunc(v VolumeToAttach, actualState ActualStateOfWorldAttacherUpdater) *Operation {
	info := OperationInfo{Kind: OpAttach, VolumeName: v.VolumeName, NodeName: v.NodeName}
	return newOperation(info, func(ctx context.Context, x *execution) error {
		a := &attaching{Generator: g, x: x, v: v, state: actualState}
		err := a.run(ctx)
		a.tell(err)
		return err
	})
}

func (a *attaching) run(ctx context.Context) error {
	attacher, err := a.attacher(ctx)
	if err != nil {
		return err
	}
	intent := Intent{
		Kind: OpAttach, VolumeName: a.v.VolumeName, PluginName: a.x.pluginName(), Spec: a.v.VolumeSpec, NodeName: a.v.NodeName,
	}
	if err := a.intend(ctx, a.x, intent); err != nil {
		return err
	}
	intent.DevicePath, err = perform(ctx, a.x, a.x.changing("Attach"), func(ctx context.Context) (string, error) {
		return attacher.Attach(ctx, a.v.VolumeSpec, a.v.NodeName)
	})
	if err != nil {
		return a.failed(ctx, intent, err)
	}
	if err := a.state.MarkVolumeAsAttached(a.v.VolumeName, a.v.VolumeSpec, a.v.NodeName, intent.DevicePath); err != nil {
		return a.failed(ctx, intent, fmt.Errorf("volume is attached, but the actual state does not take it: %w", err))
	}
	a.conclude(ctx, a.x, intent, IntentDone)
	return nil
}

func (a *attaching) attacher(ctx context.Context) (volume.Attacher, error) {
	plugin, err := find(ctx, a.x, func() (volume.AttachableVolumePlugin, error) {
		return a.plugins.FindAttachablePluginBySpec(a.v.VolumeSpec)
	})
	if err != nil {
		return nil, err
	}
	return construct(ctx, a.x, "NewAttacher", plugin.NewAttacher)
}

// failed says that the volume may be attached, whatever the class of err; unless the plugin was never called.
func (a *attaching) failed(ctx context.Context, intent Intent, err error) error {
	// A volume that was not attached before is not now; but it may have been, and so the record stays.
	a.conclude(ctx, a.x, intent, IntentUncertain)
	if notCalled(err) {
		return err
	}
	return uncertainToo(err, a.state.MarkVolumeAsUncertain(a.v.VolumeName, a.v.VolumeSpec, a.v.NodeName))
}

// tell records what became of the operation on every pod that waits for it.
func (a *attaching) tell(err error) {
	for _, pod := range a.v.ScheduledPods {
		if err != nil {
			a.event(podObject(pod), v1.EventTypeWarning, ReasonFailedAttachVolume, "attaching volume %q to node %q failed: %v",
				a.v.VolumeSpec.Name(), a.v.NodeName, err)
			continue
		}
		a.event(podObject(pod), v1.EventTypeNormal, ReasonSuccessfulAttachVolume, "volume %q is attached to node %q",
			a.v.VolumeSpec.Name(), a.v.NodeName)
	}
}
