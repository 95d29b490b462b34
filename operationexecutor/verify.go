package operationexecutor

import (
	"context"
	"errors"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// VerifyVolumesAreAttached begins to ask whether volumes still are attached to the nodes under which they are listed: one
// operation for each plugin that is a volume.BulkVolumeVerifier, and one for each node and plugin otherwise, side by side.
// One that a plugin says is not attached is marked as detached, unless it is being or has been attached or detached since
// the plugin was asked; what is left out of an answer keeps its state. The operations hold no key and are never refused for
// another one, nor for an earlier failure; the calls of one plugin are bounded as all its calls are. A volume whose spec is
// not known, and one that needs no attaching, is not asked about. What is uncertain is confirmed: see [UncertainAttachments].
func (e *Executor) VerifyVolumesAreAttached(ctx context.Context, volumesByNode map[types.NodeName][]AttachedVolume, actualState ActualStateOfWorldAttacherUpdater) ([]*Operation, error) {
	var ops []*Operation
	var errs []error
	plugins := byPlugin(volumesByNode)
	for _, pluginName := range slices.Sorted(maps.Keys(plugins)) {
		for _, op := range e.verifications(pluginName, plugins[pluginName], actualState) {
			op, err := e.begin(ctx, Key{}, op)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			ops = append(ops, op)
		}
	}
	return ops, errors.Join(errs...)
}

// VerifyVolumesAreAttachedPerNode is [Executor.VerifyVolumesAreAttached] for one node.
func (e *Executor) VerifyVolumesAreAttachedPerNode(ctx context.Context, volumes []AttachedVolume, nodeName types.NodeName, actualState ActualStateOfWorldAttacherUpdater) ([]*Operation, error) {
	return e.VerifyVolumesAreAttached(ctx, map[types.NodeName][]AttachedVolume{nodeName: volumes}, actualState)
}

// verifications returns the operations that ask one plugin.
func (e *Executor) verifications(pluginName string, byNode map[types.NodeName][]AttachedVolume, actualState ActualStateOfWorldAttacherUpdater) []*Operation {
	if len(byNode) > 1 && e.generator.GetVolumePluginMgr().Capabilities(pluginName).Has(volume.CapBulkVerify) {
		return []*Operation{e.generator.GenerateBulkVolumeVerifyFunc(byNode, pluginName, actualState)}
	}
	var ops []*Operation
	for _, nodeName := range slices.Sorted(maps.Keys(byNode)) {
		ops = append(ops, e.generator.GenerateVolumesAreAttachedFunc(byNode[nodeName], nodeName, pluginName, actualState))
	}
	return ops
}

// byPlugin returns the volumes that can be asked about by the name of their plugin.
func byPlugin(volumesByNode map[types.NodeName][]AttachedVolume) map[string]map[types.NodeName][]AttachedVolume {
	grouped := map[string]map[types.NodeName][]AttachedVolume{}
	for nodeName, volumes := range volumesByNode {
		for _, v := range volumes {
			if v.VolumeSpec == nil || !v.PluginIsAttachable {
				continue
			}
			name := pluginOf(v)
			if grouped[name] == nil {
				grouped[name] = map[types.NodeName][]AttachedVolume{}
			}
			grouped[name][nodeName] = append(grouped[name][nodeName], v)
		}
	}
	return grouped
}

// pluginOf returns the name of the volume's plugin: the one that it says, or the one that its name begins with.
func pluginOf(v AttachedVolume) string {
	if v.PluginName != "" {
		return v.PluginName
	}
	name, _, _ := volume.SplitUniqueName(v.VolumeName) // No plugin has an empty name, and so the look-up says what is wrong.
	return name
}

// verifying is one operation that asks one plugin about attachments.
type verifying struct {
	*generator
	x          *execution
	pluginName string
	volumes    map[types.NodeName][]AttachedVolume
	state      ActualStateOfWorldAttacherUpdater
	ask        func(v *verifying, ctx context.Context, specs specsByNode) (answerByNode, error)
}

// specsByNode is what a plugin is asked about, and answerByNode what it answers.
type (
	specsByNode  = map[types.NodeName]map[v1.UniqueVolumeName]*volume.Spec
	answerByNode = map[types.NodeName]map[v1.UniqueVolumeName]bool
)

// GenerateVolumesAreAttachedFunc implements [OperationGenerator].
func (g *generator) GenerateVolumesAreAttachedFunc(volumes []AttachedVolume, nodeName types.NodeName, pluginName string, actualState ActualStateOfWorldAttacherUpdater) *Operation {
	info := OperationInfo{Kind: OpVerifyAttached, PluginName: pluginName, NodeName: nodeName}
	return g.verification(info, verifying{
		volumes: map[types.NodeName][]AttachedVolume{nodeName: volumes}, state: actualState, ask: (*verifying).queryNode,
	})
}

// GenerateBulkVolumeVerifyFunc implements [OperationGenerator].
func (g *generator) GenerateBulkVolumeVerifyFunc(volumesByNode map[types.NodeName][]AttachedVolume, pluginName string, actualState ActualStateOfWorldAttacherUpdater) *Operation {
	info := OperationInfo{Kind: OpBulkVerifyAttached, PluginName: pluginName}
	return g.verification(info, verifying{volumes: volumesByNode, state: actualState, ask: (*verifying).queryBulk})
}

func (g *generator) verification(info OperationInfo, v verifying) *Operation {
	v.generator, v.pluginName = g, info.PluginName
	return newOperation(info, &v)
}

// run asks about every attachment of which no operation is pending, and marks those that are gone.
func (v *verifying) run(ctx context.Context, x *execution) error {
	v.x = x
	watch := v.x.executor.attachments.watch(v.volumes)
	defer watch.end()
	asked := v.settled()
	answer, err := v.ask(v, ctx, specsOf(asked, func(spec *volume.Spec) *volume.Spec { return v.copyOf(v.x, spec) }))
	if err != nil {
		return err
	}
	var errs []error
	for _, at := range asked {
		attached, known := answer[at.NodeName][at.VolumeName]
		switch {
		case !known:
		case v.isUncertain(at):
			if attached {
				errs = append(errs, v.markAttached(at, watch))
			}
		case !attached:
			v.markDetached(ctx, at, watch)
		}
	}
	return errors.Join(errs...)
}

func (v *verifying) isUncertain(at AttachedVolume) bool {
	state, ok := v.state.(UncertainAttachments)
	return ok && state.IsAttachmentUncertain(at.VolumeName, at.NodeName)
}

// markAttached marks an uncertain attachment as attached, under the same conditions as markDetached.
func (v *verifying) markAttached(at AttachedVolume, watch *attachmentWatch) (err error) {
	v.x.executor.hold(Key{Volume: at.VolumeName, Node: at.NodeName}, v.x.op.Info(), func() {
		if !watch.stale(at.VolumeName, at.NodeName) {
			err = v.state.MarkVolumeAsAttached(at.VolumeName, at.VolumeSpec, at.NodeName, at.DevicePath)
		}
	})
	return err
}

// settled returns the attachments that are not being made or undone. Those that are have no state that could be asked.
func (v *verifying) settled() []AttachedVolume {
	var settled []AttachedVolume
	for _, nodeName := range slices.Sorted(maps.Keys(v.volumes)) {
		for _, at := range v.volumes[nodeName] {
			at.NodeName = nodeName
			if !v.x.executor.IsOperationPending(Key{Volume: at.VolumeName, Node: nodeName}) {
				settled = append(settled, at)
			}
		}
	}
	return settled
}

// specsOf returns the question. Its maps are the plugin's, which may be abandoned with them.
func specsOf(volumes []AttachedVolume, copyOf func(spec *volume.Spec) *volume.Spec) specsByNode {
	specs := specsByNode{}
	for _, at := range volumes {
		if specs[at.NodeName] == nil {
			specs[at.NodeName] = map[v1.UniqueVolumeName]*volume.Spec{}
		}
		specs[at.NodeName][at.VolumeName] = copyOf(at.VolumeSpec)
	}
	return specs
}

func (v *verifying) queryBulk(ctx context.Context, specs specsByNode) (answerByNode, error) {
	verifier, err := construct(ctx, v.x, "FindPlugin", func() (volume.BulkVolumeVerifier, error) {
		return v.plugins.FindBulkVerifierByName(v.pluginName)
	})
	if err != nil || len(specs) == 0 {
		return nil, err
	}
	return perform(ctx, v.x, v.x.reading("BulkVerifyVolumes"), func(ctx context.Context) (answerByNode, error) {
		return verifier.BulkVerifyVolumes(ctx, specs)
	})
}

func (v *verifying) queryNode(ctx context.Context, specs specsByNode) (answerByNode, error) {
	plugin, err := find(ctx, v.x, func() (volume.AttachableVolumePlugin, error) {
		return v.plugins.FindAttachablePluginByName(v.pluginName)
	})
	if err != nil || len(specs) == 0 {
		return nil, err
	}
	attacher, err := construct(ctx, v.x, "NewAttacher", plugin.NewAttacher)
	if err != nil {
		return nil, err
	}
	nodeName := v.x.op.Info().NodeName
	answer, err := perform(ctx, v.x, v.x.reading("VolumesAreAttached"), func(ctx context.Context) (map[v1.UniqueVolumeName]bool, error) {
		return attacher.VolumesAreAttached(ctx, specs[nodeName], nodeName)
	})
	return answerByNode{nodeName: answer}, err
}

// markDetached marks an attachment as detached, while its key is held and unless an attach or detach began after the plugin was
// asked, for then the answer says nothing about what is now.
func (v *verifying) markDetached(ctx context.Context, at AttachedVolume, watch *attachmentWatch) {
	key := Key{Volume: at.VolumeName, Node: at.NodeName}
	stale := true
	v.x.executor.hold(key, v.x.op.Info(), func() {
		if stale = watch.stale(at.VolumeName, at.NodeName); !stale {
			v.state.MarkVolumeAsDetached(at.VolumeName, at.NodeName)
			v.forget(ctx, at)
		}
	})
	if !stale {
		v.event(volumeObject(at.VolumeSpec), v1.EventTypeWarning, ReasonVolumeNotAttached,
			"volume %q is not attached to node %q any more, and this program did not detach it", at.VolumeName, at.NodeName)
	}
}

// forget removes the attachment from the records unless the state still has it, because no later operation would do that. An
// attachment in use stays.
func (v *verifying) forget(ctx context.Context, at AttachedVolume) {
	state, ok := v.state.(VolumeNodes)
	if ok && slices.Contains(state.NodesOfVolume(at.VolumeName), at.NodeName) {
		return
	}
	intent := Intent{
		Kind: OpDetach, VolumeName: at.VolumeName, PluginName: v.x.pluginName(), Spec: at.VolumeSpec,
		NodeName: at.NodeName, DevicePath: at.DevicePath,
	}
	v.conclude(ctx, v.x, intent, IntentForgotten)
}
