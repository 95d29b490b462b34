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

// confirmer checks the recorded attachments with the plugins at the start. One call checks many attachments, and those that
// the plugin confirms are not attached again. Its methods may be called from several goroutines at once.
type confirmer struct {
	plugins  *volume.VolumePluginMgr
	executor *operationexecutor.Executor
	actual   *cluster.ActualStateOfWorld
	logger   *slog.Logger
	dirty    *workqueue.Queue[attachment]

	mu      sync.Mutex              // no call that waits is made under it
	unknown map[attachment]struct{} // those that a plugin is still checking
}

// confirmation is one operation that checks attachments with a plugin, and these attachments.
type confirmation struct {
	operation *operationexecutor.Operation
	of        []attachment
}

// begin begins to check the recorded attachments. The controller neither attaches them again nor detaches them before the
// result. Afterwards it attaches those that are still uncertain.
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
		q.logger.Warn("not every volume on record can be verified: some are attached again", "error", err)
	}
	confirmations := make([]confirmation, 0, len(operations))
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, op := range operations {
		asked := checkedBy(op.Info(), byNode)
		for _, a := range asked {
			q.unknown[a] = struct{}{}
		}
		confirmations = append(confirmations, confirmation{op, asked})
	}
	return confirmations
}

// mustSeeToken reports whether each volume of the plugin must be attached again, instead of checked. Storage that fences
// calls refuses those of earlier leaders only after it has seen this leader's token for the volume, and a check does not
// carry the token. Attaching again shows the token before a late call of an earlier leader can undo the attachment.
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

// checkedBy returns the attachments that an operation checks: those of its plugin, and of its node if it has one.
func checkedBy(op operationexecutor.OperationInfo, byNode map[types.NodeName][]operationexecutor.AttachedVolume) []attachment {
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

// await waits for the end of a check and makes its attachments dirty, also if the check failed.
func (q *confirmer) await(ctx context.Context, asked confirmation) {
	select {
	case <-asked.operation.Done():
	case <-ctx.Done():
		return
	}
	if err := asked.operation.Err(); err != nil {
		q.logger.Warn("volumes on record cannot be verified and are attached again", "volumes", len(asked.of), "error", err)
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

// isBeingChecked reports whether a plugin is checking the attachment. The end of the check makes the attachment dirty.
func (q *confirmer) isBeingChecked(a attachment) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, asked := q.unknown[a]
	return asked
}
