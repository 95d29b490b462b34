package volumemanager

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// verifyAttached asks the plugins whether what this node has attached still is. It starts operations and does not wait for
// them. Where a controller attaches, that is the controller's.
func (m *Manager) verifyAttached(ctx context.Context) {
	if m.nodeStatus != nil {
		return
	}
	var volumes []operationexecutor.AttachedVolume
	for _, row := range m.actual.GetAttachedVolumes() {
		if row.PluginIsAttachable && row.AttachState == cache.Attached {
			volumes = append(volumes, row.AttachedVolume)
		}
	}
	if len(volumes) == 0 {
		return
	}
	_, err := m.executor.VerifyVolumesAreAttachedPerNode(ctx, volumes, m.node(), foundDetached{m.actual, m})
	if err != nil {
		m.options.Logger.Warn("volumes could not be verified to be attached", "error", err)
	}
}

// foundDetached is the actual state for a verification. A volume that is found detached is forgotten when nothing uses it.
// One that is used has an uncertain attachment from then on: it is attached again while a pod wants it, and detached in the
// end. It is planned when the verification releases its key.
type foundDetached struct {
	*actualState
	m *Manager
}

// MarkVolumeAsDetached implements the executor's attacher updater.
func (f foundDetached) MarkVolumeAsDetached(name v1.UniqueVolumeName, nodeName types.NodeName) {
	err := f.DeleteVolume(name)
	if errors.Is(err, volume.ErrInUse) {
		err = f.MarkVolumeAsUncertain(name, nil, nodeName)
	}
	if err != nil {
		f.m.options.Logger.Warn("a volume that was found detached stays as it was", "volume", name, "error", err)
	}
}
