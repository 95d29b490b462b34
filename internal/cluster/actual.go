package cluster

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// ActualStateOfWorld holds which volumes are, or may be, attached to which nodes of a cluster. It implements the executor's
// attacher updater and operationexecutor.VolumeNodes. It does not implement operationexecutor.VolumeUsers: that would count
// the pods of all nodes, but a volume may be detached from one node while pods of another node use it. Instead, the volumes
// that a node says it uses are not detached from that node. Make it with [NewActualStateOfWorld].
type ActualStateOfWorld struct {
	plugins *volume.VolumePluginMgr
	options Options

	mu    sync.RWMutex
	table *table
}

var (
	_ operationexecutor.ActualStateOfWorldAttacherUpdater = (*ActualStateOfWorld)(nil)
	_ operationexecutor.VolumeNodes                       = (*ActualStateOfWorld)(nil)
)

// Attachment is what is known of one volume on one node.
type Attachment struct {
	// AttachedVolume is the volume, with its node and its device path there. It does not show whether the volume is staged.
	operationexecutor.AttachedVolume
	// NodeUID is the UID of the node that has the volume. A later node of the same name has another UID. It is empty if the
	// node was not known.
	NodeUID types.UID
	// AttachState is what is known of the attachment. It is never NotAttached.
	AttachState AttachmentState
	// InUse is whether the node uses the volume, as far as its status says.
	InUse UseState
	// Reported says that the node's report lists the volume as attached.
	Reported bool
	// DetachRequestedSince is the time since which a detach is requested; zero without a request.
	DetachRequestedSince time.Time
	// ForcedDetachAllowed says that the volume may be detached even while the node uses it.
	ForcedDetachAllowed bool
}

// attachmentRow is a volume on a node. Queries return copies.
type attachmentRow struct {
	Attachment
	attempt *AttachAttempt // the running attempt, in the state Attaching
	// inherited says that the volume was, or may have been, attached while the node had another UID.
	inherited bool
}

func (r *attachmentRow) compareNode(name types.NodeName) int { return cmp.Compare(r.NodeName, name) }

func (r *attachmentRow) compareVolume(name v1.UniqueVolumeName) int {
	return cmp.Compare(r.VolumeName, name)
}

func (r *attachmentRow) key() attachmentKey { return attachmentKey{r.NodeName, r.VolumeName} }

// attachmentKey names one volume on one node.
type attachmentKey struct {
	node   types.NodeName
	volume v1.UniqueVolumeName
}

// NewActualStateOfWorld returns a state in which no node is known and nothing is attached.
func NewActualStateOfWorld(plugins *volume.VolumePluginMgr, options Options) *ActualStateOfWorld {
	return &ActualStateOfWorld{plugins: plugins, options: options, table: &table{
		nodes: map[types.NodeName]*nodeRow{}, volumes: map[v1.UniqueVolumeName][]*attachmentRow{}, unreported: map[types.NodeName]struct{}{},
	}}
}

// attachmentChange is the input of one change of an attachment.
type attachmentChange struct {
	key        attachmentKey
	pluginName string
	spec       *volume.Spec   // nil when it is not known
	devicePath string         // empty when it is not known
	uid        types.UID      // of the node that is meant, or that had the volume; empty for the present node of that name
	limit      int            // the attach limit, for a new attachment; zero without one
	attempt    *AttachAttempt // an attempt that begins, or has ended
	inStatus   bool           // the node's status lists the volume
}

// MarkVolumeAsAttached implements the executor's attacher updater. devicePath and spec replace the known ones, unless they
// are empty. If the node is unknown or gone, the error matches [ErrNodeUnknown], and the executor then marks the volume as
// uncertain.
func (a *ActualStateOfWorld) MarkVolumeAsAttached(volumeName v1.UniqueVolumeName, spec *volume.Spec, nodeName types.NodeName, devicePath string) error {
	n := attachmentChange{key: attachmentKey{nodeName, volumeName}, spec: spec, devicePath: devicePath}
	return a.mark(succeeded, &n)
}

// MarkVolumeAsUncertain implements the executor's attacher updater. The known path and spec stay. It also works for an
// unknown node, and for a volume whose plugin is gone.
func (a *ActualStateOfWorld) MarkVolumeAsUncertain(volumeName v1.UniqueVolumeName, spec *volume.Spec, nodeName types.NodeName) error {
	n := attachmentChange{key: attachmentKey{nodeName, volumeName}, spec: spec}
	return a.mark(markedUncertain, &n)
}

// MarkVolumeAsDetached implements the executor's attacher updater. It does not end a running attempt to attach the volume.
func (a *ActualStateOfWorld) MarkVolumeAsDetached(volumeName v1.UniqueVolumeName, nodeName types.NodeName) {
	// The table refuses nothing here: a detached volume is detached.
	_ = a.update(markedDetached, &attachmentChange{key: attachmentKey{nodeName, volumeName}})
}

// RemoveVolumeFromReportAsAttached implements the executor's attacher updater. It also guards the volume: it fails with a
// [*NodeUsesVolumeError] while the node uses the volume, or is assumed to, unless a forced detach is allowed. It fails with
// [ErrNotAttached] if the volume is certainly not attached.
func (a *ActualStateOfWorld) RemoveVolumeFromReportAsAttached(volumeName v1.UniqueVolumeName, nodeName types.NodeName) error {
	return a.update(withdrawn, &attachmentChange{key: attachmentKey{nodeName, volumeName}})
}

// AddVolumeToReportAsAttached implements the executor's attacher updater. The report still lists only volumes that are
// attached for certain.
func (a *ActualStateOfWorld) AddVolumeToReportAsAttached(volumeName v1.UniqueVolumeName, nodeName types.NodeName) {
	_ = a.update(restored, &attachmentChange{key: attachmentKey{nodeName, volumeName}}) // The table refuses nothing here.
}

// mark fills in the names of the volume and its plugin, and updates the state.
func (a *ActualStateOfWorld) mark(e event, n *attachmentChange) error {
	if n.key.node == "" {
		return fmt.Errorf("volume %q: a node is required: %w", n.key.volume, volume.ErrInvalid)
	}
	if err := a.name(n); err != nil {
		return err
	}
	return a.update(e, n)
}

// name fills in the volume's name, if it is missing, and the plugin's name. It keeps a volume name that has no plugin.
func (a *ActualStateOfWorld) name(n *attachmentChange) error {
	if n.key.volume == "" {
		name, err := a.plugins.UniqueVolumeName("", n.spec)
		if err != nil {
			return err
		}
		n.key.volume = name
	}
	n.pluginName, _, _ = volume.SplitUniqueName(n.key.volume)
	return nil
}

// update makes one transition and calls the hooks for what changed.
func (a *ActualStateOfWorld) update(e event, n *attachmentChange) error {
	a.mu.Lock()
	calls, err := a.table.transition(e, n)
	a.mu.Unlock()
	if err != nil {
		return err
	}
	a.callHooks(n.key, calls)
	return nil
}

// hookCalls says which hooks to call after a transition.
type hookCalls struct{ row, report bool }

func (a *ActualStateOfWorld) callHooks(key attachmentKey, calls hookCalls) {
	if calls.row {
		a.options.changed(key)
	}
	if calls.report {
		a.options.reportChanged(key.node)
	}
}
