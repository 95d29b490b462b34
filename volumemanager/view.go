package volumemanager

import (
	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/expansion"
	"github.com/volumekit/volumekit/volumemanager/internal/health"
	"github.com/volumekit/volumekit/volumemanager/internal/mountwatch"
	"github.com/volumekit/volumekit/volumemanager/internal/nodestatus"
	"github.com/volumekit/volumekit/volumemanager/internal/populator"
	"github.com/volumekit/volumekit/volumemanager/internal/reconciler"
	"github.com/volumekit/volumekit/volumemanager/internal/recovery"
)

// nodeView reads where the volumes of the node stand, for the status, the waits and the changes of a [Manager]. Its methods change
// nothing and do no I/O. They call no plugin, but for searchFor and what it returns, which ask a plugin for the name of a volume.
type nodeView struct {
	plugins    *volume.VolumePluginMgr
	desired    *cache.DesiredStateOfWorld
	actual     *actualState
	executor   *operationexecutor.Executor
	recovery   *recovery.Recovery
	populator  *populator.Populator
	nodeStatus *nodestatus.Status // nil: this node attaches volumes itself
	expansion  *expansion.Tracker
	health     *health.Table
	watch      *mountwatch.Watch
	reconciler *reconciler.Reconciler
}

// newView returns the view of a manager whose other parts have been made.
func newView(m *Manager) nodeView {
	return nodeView{
		plugins: m.plugins, desired: m.desired, actual: m.actual, executor: m.executor, recovery: m.recovery, populator: m.populator,
		nodeStatus: m.nodeStatus, expansion: m.expansion, health: m.health, watch: m.watch, reconciler: m.reconciler,
	}
}
