package operationexecutor

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

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
	*generator
	x     *execution
	v     VolumeToAttach
	state ActualStateOfWorldAttacherUpdater

	intent Intent
}

// GenerateAttachVolumeFunc implements [OperationGenerator].
func (g *generator) GenerateAttachVolumeFunc(v VolumeToAttach, actualState ActualStateOfWorldAttacherUpdater) *Operation {
	info := OperationInfo{Kind: OpAttach, VolumeName: v.VolumeName, NodeName: v.NodeName}
	info.PluginName, _, _ = volume.SplitUniqueName(v.VolumeName) // It is found for certain later.
	return newOperation(info, &attaching{generator: g, v: v, state: actualState})
}

func (a *attaching) run(ctx context.Context, x *execution) error {
	a.x = x
	if err := a.checkOneNode(); err != nil {
		return err
	}
	attacher, err := a.attacher(ctx)
	if err != nil {
		return err
	}
	a.intent = Intent{
		Kind: OpAttach, VolumeName: a.v.VolumeName, PluginName: a.x.pluginName(), Spec: a.v.VolumeSpec, NodeName: a.v.NodeName,
	}
	if err := a.intend(ctx, a.x, a.intent); err != nil {
		return err
	}
	a.x.failed = a.failed
	spec := a.copyOf(a.x, a.v.VolumeSpec)
	devicePath, err := perform(ctx, a.x, a.x.changing("Attach"), func(ctx context.Context) (string, error) {
		return attacher.Attach(ctx, spec, a.v.NodeName)
	})
	if err != nil {
		return err
	}
	a.intent.DevicePath = devicePath
	if err := a.state.MarkVolumeAsAttached(a.v.VolumeName, a.v.VolumeSpec, a.v.NodeName, devicePath); err != nil {
		return fmt.Errorf("volume is attached, but the actual state does not take it: %w", err)
	}
	a.conclude(ctx, a.x, a.intent, IntentDone)
	return nil
}

func (a *attaching) attacher(ctx context.Context) (volume.Attacher, error) {
	spec := a.copyOf(a.x, a.v.VolumeSpec)
	plugin, err := find(ctx, a.x, func() (volume.AttachableVolumePlugin, error) {
		return a.plugins.FindAttachablePluginBySpec(spec)
	})
	if err != nil {
		return nil, err
	}
	return construct(ctx, a.x, "NewAttacher", plugin.NewAttacher)
}

// MultiAttachError says that a volume that one node alone may have is, or may be, attached to others. It matches
// volume.ErrInUse.
type MultiAttachError struct {
	// Nodes are those that have, or may have, the volume.
	Nodes []types.NodeName
}

// Error names the nodes.
func (e *MultiAttachError) Error() string {
	return fmt.Sprintf("one node alone may have the volume, and it is or may be attached to %q: it is attached here when it was detached there", e.Nodes)
}

// Unwrap returns volume.ErrInUse.
func (e *MultiAttachError) Unwrap() error { return volume.ErrInUse }

// checkOneNode refuses a second node for a volume that one node alone may have. It holds the volume's key, so that no other
// attachment of it comes meanwhile; one that is uncertain counts.
func (a *attaching) checkOneNode() error {
	state, ok := a.state.(VolumeNodes)
	if !ok || volume.IsMultiAttachAllowed(a.v.VolumeSpec) {
		return nil
	}
	nodes := slices.DeleteFunc(slices.Clone(state.NodesOfVolume(a.v.VolumeName)), func(n types.NodeName) bool { return n == a.v.NodeName })
	if len(nodes) == 0 {
		return nil
	}
	return &MultiAttachError{Nodes: nodes}
}

// failed says to which node the volume may be attached now: to the one that was asked for, whatever the class of err, or
// to the one on which the plugin found it; to none by this operation when the plugin was never called.
func (a *attaching) failed(ctx context.Context, err error) error {
	if notCalled(err) {
		a.conclude(ctx, a.x, a.intent, a.before())
		return err
	}
	if current := a.dangling(err); current != "" {
		return a.failedElsewhere(ctx, current, err)
	}
	a.conclude(ctx, a.x, a.intent, IntentUncertain) // A volume that was not attached before may have been, and so the record stays.
	return uncertainToo(err, a.state.MarkVolumeAsUncertain(a.v.VolumeName, a.v.VolumeSpec, a.v.NodeName))
}

// failedElsewhere says that the volume may be attached to another node. A state that is both updaters is that of this node
// alone, and has no row for another one.
func (a *attaching) failedElsewhere(ctx context.Context, current types.NodeName, err error) error {
	a.conclude(ctx, a.x, a.intent, IntentForgotten)
	if _, own := a.state.(ActualStateOfWorldMounterUpdater); own {
		return err
	}
	return uncertainToo(err, a.state.MarkVolumeAsUncertain(a.v.VolumeName, a.v.VolumeSpec, current))
}

// before returns how the intent ends of an operation that has done nothing. The record stays unless the state knows that
// there was nothing before: the record of an unknown volume would stay for ever.
func (a *attaching) before() IntentEnd {
	state, ok := a.state.(VolumeNodes)
	if ok && !slices.Contains(state.NodesOfVolume(a.v.VolumeName), a.v.NodeName) {
		return IntentForgotten
	}
	return IntentUncertain
}

// dangling returns the other node that has the volume, when err says so and the volume can be on one node only.
func (a *attaching) dangling(err error) types.NodeName {
	var dangling *volume.DanglingAttachError
	if !errors.As(err, &dangling) || dangling.CurrentNode == a.v.NodeName || volume.IsMultiAttachAllowed(a.v.VolumeSpec) {
		return ""
	}
	return dangling.CurrentNode
}

// ended records what became of the operation on every pod that waits for it. That another node has the volume is told once.
func (a *attaching) ended(err error) error {
	if a.recorder == nil {
		return err
	}
	var elsewhere *MultiAttachError
	if a.v.MultiAttachErrorReported && errors.As(err, &elsewhere) {
		return err
	}
	for _, pod := range a.v.ScheduledPods {
		if err != nil {
			a.event(podObject(pod), v1.EventTypeWarning, ReasonFailedAttachVolume, "attaching volume %q to node %q failed: %v",
				a.v.VolumeSpec.Name(), a.v.NodeName, err)
			continue
		}
		a.event(podObject(pod), v1.EventTypeNormal, reasonSuccessfulAttachVolume, "volume %q is attached to node %q",
			a.v.VolumeSpec.Name(), a.v.NodeName)
	}
	return err
}
