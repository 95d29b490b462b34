package attachdetach

import (
	"context"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// This file confirms at the start what is on record as attached: plugins are asked about many attachments at once, and what is there
// is not attached again.

// confirmation is a question to a plugin.
type confirmation struct {
	operation *operationexecutor.Operation
	of        []attachment
}

// confirmRecorded begins to ask about the attachments whose records say that they were made. Until the answer has come they are not
// attached again; after it those that are still uncertain are.
func (c *Controller) confirmRecorded(ctx context.Context) []confirmation {
	byNode := map[types.NodeName][]operationexecutor.AttachedVolume{}
	for _, a := range c.recorded {
		have, there := c.actual.Attachment(a.volume, a.node)
		if there && have.AttachState == cache.AttachUncertain && have.VolumeSpec != nil && !c.mustSeeToken(ctx, have.PluginName) {
			byNode[a.node] = append(byNode[a.node], have.AttachedVolume)
		}
	}
	c.recorded = nil
	operations, err := c.executor.VerifyVolumesAreAttached(ctx, byNode, c.actual)
	if err != nil {
		c.options.Logger.Warn("not every volume on record can be verified: some are attached again", "err", err)
	}
	confirmations := make([]confirmation, 0, len(operations))
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, op := range operations {
		asked := askedBy(op.Info(), byNode)
		for _, a := range asked {
			c.confirming[a] = struct{}{}
		}
		confirmations = append(confirmations, confirmation{op, asked})
	}
	return confirmations
}

// mustSeeToken reports whether the storage of a plugin refuses calls of earlier leaders, once it has seen one of this leader for the
// volume. A question is none: so each volume is attached again, before a late call of an earlier leader can undo it.
func (c *Controller) mustSeeToken(ctx context.Context, pluginName string) bool {
	if _, elected := volume.FencingTokenFrom(ctx); !elected {
		return false
	}
	plugin, err := c.plugins.FindAttachablePluginByName(pluginName)
	if err != nil {
		return false
	}
	fencing, ok := plugin.(volume.FencingVolumePlugin)
	return ok && fencing.FencesCalls()
}

// askedBy returns the attachments about which an operation asks: those of its plugin, on its node if it has one.
func askedBy(op operationexecutor.OperationInfo, byNode map[types.NodeName][]operationexecutor.AttachedVolume) []attachment {
	if op.NodeName != "" {
		byNode = map[types.NodeName][]operationexecutor.AttachedVolume{op.NodeName: byNode[op.NodeName]}
	}
	var asked []attachment
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		for _, at := range byNode[node] {
			if at.PluginName == op.PluginName {
				asked = append(asked, attachment{at.VolumeName, node})
			}
		}
	}
	return asked
}

// awaitConfirmation has attachments decided when a plugin has answered, or could not.
func (c *Controller) awaitConfirmation(ctx context.Context, asked confirmation) {
	select {
	case <-asked.operation.Done():
	case <-ctx.Done():
		return
	}
	if err := asked.operation.Err(); err != nil {
		c.options.Logger.Warn("volumes on record cannot be verified and are attached again", "volumes", len(asked.of), "err", err)
	}
	c.mu.Lock()
	for _, a := range asked.of {
		delete(c.confirming, a)
	}
	c.mu.Unlock()
	for _, a := range asked.of {
		c.dirty.Add(a)
	}
}

// isBeingConfirmed reports whether a plugin is being asked whether the volume is attached. Its answer makes the attachment dirty.
func (c *Controller) isBeingConfirmed(a attachment) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, asked := c.confirming[a]
	return asked
}
