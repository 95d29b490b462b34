package attachdetach

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// ReasonUnknownAttachment is the reason of the event of an attachment that the storage lists and that is on no record: a warning,
// on the volume.
const ReasonUnknownAttachment = "UnknownAttachment"

// listAttachments has every plugin that can list asked what its storage has attached. A leader that was stopped may have attached
// something after its term had ended. What an earlier listing still waits for is not asked again: listing has it, by plugin.
func (c *Controller) listAttachments(ctx context.Context, listing map[string]*operationexecutor.Operation) {
	for _, pluginName := range c.plugins.PluginNames() {
		plugin, err := c.plugins.FindAttachablePluginByName(pluginName)
		if err != nil {
			continue // It attaches nothing.
		}
		if _, lists := plugin.(volume.AttachmentLister); !lists || isRunning(listing[pluginName]) {
			continue
		}
		op, err := c.executor.ListAttachments(ctx, pluginName, func(ctx context.Context, found []volume.Attachment) error {
			return c.adoptUnknown(ctx, pluginName, found)
		})
		if err != nil {
			c.options.Logger.Warn("what the storage has attached cannot be listed", "plugin", pluginName, "err", err)
			continue
		}
		listing[pluginName] = op
	}
}

func isRunning(op *operationexecutor.Operation) bool {
	if op == nil {
		return false
	}
	select {
	case <-op.Done():
		return false
	default:
		return true
	}
}

// adoptUnknown takes over what a plugin lists and nobody here knows, as uncertain: it is then confirmed where pods want it, and
// detached where nobody does and the node does not use it. Only volumes of PersistentVolumes in the store are taken over: other
// clusters may share the storage.
func (c *Controller) adoptUnknown(ctx context.Context, pluginName string, found []volume.Attachment) error {
	unknown := map[v1.UniqueVolumeName][]types.NodeName{}
	for _, at := range found {
		a := attachment{volume.GetUniqueVolumeName(pluginName, at.VolumeName), at.NodeName}
		// What others made is honoured by their object.
		if at.NodeName != "" && c.actual.AttachState(a.volume, a.node) == cache.NotAttached && c.foreign.attachedHere(a) == nil {
			unknown[a.volume] = append(unknown[a.volume], a.node)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	var errs []error
	for _, pv := range c.objects.volumes.All() {
		spec := volume.NewSpecFromPersistentVolume(pv, false)
		name, err := c.plugins.UniqueVolumeName("", spec)
		if err != nil {
			continue // It has no plugin here.
		}
		for _, node := range unknown[name] {
			errs = append(errs, c.adoptOne(ctx, attachment{name, node}, pluginName, spec))
		}
		delete(unknown, name)
	}
	return errors.Join(errs...)
}

// adoptOne writes down that a volume may be attached to a node, so that nobody reclaims it, and takes that over.
func (c *Controller) adoptOne(ctx context.Context, a attachment, pluginName string, spec *volume.Spec) error {
	intent := operationexecutor.Intent{
		Kind: operationexecutor.OpDetach, VolumeName: a.volume, PluginName: pluginName, Spec: spec, NodeName: a.node,
	}
	if err := c.records.Intend(ctx, intent); err != nil {
		return fmt.Errorf("volume %q, which is attached to node %q, cannot be written down: %w", a.volume, a.node, err)
	}
	at := operationexecutor.AttachedVolume{VolumeName: a.volume, VolumeSpec: spec, NodeName: a.node, PluginName: pluginName, PluginIsAttachable: true}
	if err := c.actual.RecoverAttachment(at, ""); err != nil {
		return fmt.Errorf("volume %q, which is attached to node %q, cannot be taken over: %w", a.volume, a.node, err)
	}
	c.options.Logger.Warn("a volume is attached and was on no record", "volume", a.volume, "node", a.node)
	if c.options.Recorder != nil {
		c.options.Recorder.Eventf(spec.PersistentVolume, v1.EventTypeWarning, ReasonUnknownAttachment,
			"volume %q is attached to node %q, which was on no record: it is detached unless pods want it there or the node uses it", a.volume, a.node)
	}
	return nil
}
