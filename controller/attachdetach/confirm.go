package attachdetach

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/cluster"
	"github.com/volumekit/volumekit/internal/workqueue"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// confirmer confirms at the start what is on record as attached: a plugin is asked about many attachments at once, and what is there
// is not attached again. Its methods may be called from several goroutines at once.
type confirmer struct {
	plugins  *volume.VolumePluginMgr
	executor *operationexecutor.Executor
	actual   *cluster.ActualStateOfWorld
	logger   *slog.Logger
	dirty    *workqueue.Queue[attachment]

	mu      sync.Mutex              // no call that waits is made under it
	unknown map[attachment]struct{} // those of which a plugin has not answered yet
}

// confirmation is one operation that asks a plugin, and the attachments that it asks about.
type confirmation struct {
	operation *operationexecutor.Operation
	of        []attachment
}

// begin begins to ask about the attachments whose records say that they were made. Until the answer has come they are not attached
// again; after it those that are still uncertain are.
func (q *confirmer) begin(ctx context.Context, recorded []attachment) []confirmation {
	byNode := map[types.NodeName][]operationexecutor.AttachedVolume{}
	for _, a := range recorded {
		have, there := q.actual.Attachment(a.volume, a.node)
		if there && have.AttachState == cluster.AttachUncertain && have.VolumeSpec != nil && !q.mustSeeToken(ctx, have.PluginName) {
			byNode[a.node] = append(byNode[a.node], have.AttachedVolume)
		}
	}
	operations, err := q.executor.VerifyVolumesAreAttached(ctx, byNode, q.actual)
	if err != nil {
		q.logger.Warn("not every volume on record can be verified: some are attached again", "err", err)
	}
	confirmations := make([]confirmation, 0, len(operations))
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, op := range operations {
		asked := askedBy(op.Info(), byNode)
		for _, a := range asked {
			q.unknown[a] = struct{}{}
		}
		confirmations = append(confirmations, confirmation{op, asked})
	}
	return confirmations
}

// mustSeeToken reports whether the storage of a plugin refuses calls of earlier leaders, once it has seen one of this leader for the
// volume. A question is none: so each volume is attached again, before a late call of an earlier leader can undo it.
func (q *confirmer) mustSeeToken(ctx context.Context, pluginName string) bool {
	if _, elected := volume.FencingTokenFrom(ctx); !elected {
		return false
	}
	plugin, err := q.plugins.FindAttachablePluginByName(pluginName)
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

// await has attachments decided when a plugin has answered, or could not.
func (q *confirmer) await(ctx context.Context, asked confirmation) {
	select {
	case <-asked.operation.Done():
	case <-ctx.Done():
		return
	}
	if err := asked.operation.Err(); err != nil {
		q.logger.Warn("volumes on record cannot be verified and are attached again", "volumes", len(asked.of), "err", err)
	}
	q.mu.Lock()
	for _, a := range asked.of {
		delete(q.unknown, a)
	}
	q.mu.Unlock()
	for _, a := range asked.of {
		q.dirty.Add(a)
	}
}

// isAsked reports whether a plugin is being asked about the attachment. Its answer makes the attachment dirty.
func (q *confirmer) isAsked(a attachment) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, asked := q.unknown[a]
	return asked
}
