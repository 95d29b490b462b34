package cluster

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/rows"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// ActualStateOfWorld says which volumes are, or may be, attached to which nodes of a cluster. It implements the
// executor's attacher updater and operationexecutor.VolumeNodes. It is not an operationexecutor.VolumeUsers: those are
// asked about the pods of all nodes; here each node is guarded for itself, by what it says that it uses. Make it with
// [NewActualStateOfWorld].
type ActualStateOfWorld struct {
	plugins *volume.VolumePluginMgr
	options Options

	mu      sync.RWMutex
	nodes   map[types.NodeName]*knownNode
	volumes map[v1.UniqueVolumeName][]*attachmentRow // by the name of the node
	// unreported are the nodes that have not been told of all changes.
	unreported map[types.NodeName]struct{}
	// version is that of the last change of what any node is to be told.
	version uint64
}

var (
	_ operationexecutor.ActualStateOfWorldAttacherUpdater = (*ActualStateOfWorld)(nil)
	_ operationexecutor.VolumeNodes                       = (*ActualStateOfWorld)(nil)
)

// Attachment is what is known of one volume on one node.
type Attachment struct {
	// AttachedVolume is the volume, with the node and the device path that it has on this node. That it is staged is not
	// known here.
	operationexecutor.AttachedVolume
	// NodeUID is the node of which that is known: a node of the same name that came later has another one. It is empty when
	// the node was not known.
	NodeUID types.UID
	// AttachState is what is known of the attachment. It is never NotAttached.
	AttachState AttachmentState
	// InUse is what the node says of its use.
	InUse UseState
	// Reported says that the node is told that the volume is attached.
	Reported bool
	// DetachRequestedSince is since when the volume is to be detached; zero when it is not.
	DetachRequestedSince time.Time
	// ForcedDetachAllowed says that it may be detached also while the node uses it.
	ForcedDetachAllowed bool
}

// attachmentRow is a volume on a node. Queries return copies.
type attachmentRow struct {
	Attachment
	attempt *AttachAttempt // the one that is going on in the state Attaching
	// inherited says that it was, or may have been, attached while the node had another UID.
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
	return &ActualStateOfWorld{
		plugins:    plugins,
		options:    options,
		nodes:      map[types.NodeName]*knownNode{},
		volumes:    map[v1.UniqueVolumeName][]*attachmentRow{},
		unreported: map[types.NodeName]struct{}{},
	}
}

// attachmentNews is what the state is told of one attachment.
type attachmentNews struct {
	key        attachmentKey
	pluginName string
	spec       *volume.Spec   // nil when it is not known
	devicePath string         // empty when it is not known
	uid        types.UID      // of the node that is meant, or was there; empty when that of the name is
	limit      int            // of a new attachment; zero when there is none
	attempt    *AttachAttempt // that begins, or has ended
	inStatus   bool           // the node's status lists the volume
}

// MarkVolumeAsAttached implements the executor's attacher updater. Unless devicePath is empty, it replaces the path that is
// known on this node; the same holds of spec. It fails, with an error that matches [ErrNodeUnknown], when the node is not
// known or has gone: the executor then marks the volume as uncertain.
func (a *ActualStateOfWorld) MarkVolumeAsAttached(volumeName v1.UniqueVolumeName, spec *volume.Spec, nodeName types.NodeName, devicePath string) error {
	n := attachmentNews{key: attachmentKey{nodeName, volumeName}, spec: spec, devicePath: devicePath}
	return a.mark(succeeded, &n)
}

// MarkVolumeAsUncertain implements the executor's attacher updater. The path and the spec that are known stay. The volume is
// kept also when its plugin cannot be asked any more, and when the node is not known.
func (a *ActualStateOfWorld) MarkVolumeAsUncertain(volumeName v1.UniqueVolumeName, spec *volume.Spec, nodeName types.NodeName) error {
	n := attachmentNews{key: attachmentKey{nodeName, volumeName}, spec: spec}
	return a.mark(doubted, &n)
}

// MarkVolumeAsDetached implements the executor's attacher updater. An attempt to attach it that is going on stays.
func (a *ActualStateOfWorld) MarkVolumeAsDetached(volumeName v1.UniqueVolumeName, nodeName types.NodeName) {
	// Nothing is refused: what is detached is detached.
	_ = a.update(undone, &attachmentNews{key: attachmentKey{nodeName, volumeName}})
}

// RemoveVolumeFromReportAsAttached implements the executor's attacher updater. It is the guard of the volume, too: it fails,
// with a [*NodeUsesVolumeError], while the node uses the volume or is assumed to, unless a forced detach is allowed; and
// with [ErrNotAttached] when the volume is not, and may not be, attached.
func (a *ActualStateOfWorld) RemoveVolumeFromReportAsAttached(volumeName v1.UniqueVolumeName, nodeName types.NodeName) error {
	return a.update(withdrawn, &attachmentNews{key: attachmentKey{nodeName, volumeName}})
}

// AddVolumeToReportAsAttached implements the executor's attacher updater. A volume that is not attached for certain is not
// told to the node.
func (a *ActualStateOfWorld) AddVolumeToReportAsAttached(volumeName v1.UniqueVolumeName, nodeName types.NodeName) {
	_ = a.update(restored, &attachmentNews{key: attachmentKey{nodeName, volumeName}}) // Nothing is refused.
}

// mark names the volume and its plugin and updates the state.
func (a *ActualStateOfWorld) mark(e event, n *attachmentNews) error {
	if n.key.node == "" {
		return fmt.Errorf("volume %q: a node is required: %w", n.key.volume, volume.ErrInvalid)
	}
	if err := a.name(n); err != nil {
		return err
	}
	return a.update(e, n)
}

// name fills in the volume's name, where it is missing, and that of its plugin. A name of no plugin is kept as it is.
func (a *ActualStateOfWorld) name(n *attachmentNews) error {
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

// update moves one attachment and tells of it.
func (a *ActualStateOfWorld) update(e event, n *attachmentNews) error {
	a.mu.Lock()
	told, err := a.move(e, n)
	a.mu.Unlock()
	if err != nil {
		return err
	}
	a.tell(n.key, told)
	return nil
}

// toldOf is what has changed.
type toldOf struct{ row, report bool }

func (a *ActualStateOfWorld) tell(key attachmentKey, told toldOf) {
	if told.row {
		a.options.changed(key)
	}
	if told.report {
		a.options.reportChanged(key.node)
	}
}

// move moves one attachment by the table.
func (a *ActualStateOfWorld) move(e event, n *attachmentNews) (toldOf, error) {
	node, old := a.nodes[n.key.node], a.find(n.key)
	state := NotAttached
	if old != nil {
		state = old.AttachState
	}
	if e == succeeded || e == begun {
		if err := node.check(n.key.node, n.uid); err != nil {
			return toldOf{}, err
		}
	}
	if e == ended && (old == nil || old.attempt != n.attempt) {
		return toldOf{}, nil
	}
	m := moves[state][e]
	if err := a.meets(m.given, n, node, old); err != nil {
		return toldOf{}, refuse(n.key, state, e, err)
	}
	return a.follow(m, e, n, old), nil
}

// find returns the row of an attachment, or nil.
func (a *ActualStateOfWorld) find(key attachmentKey) *attachmentRow {
	return rows.Find(a.volumes[key.volume], key.node, (*attachmentRow).compareNode)
}

// follow makes a move that is legal.
func (a *ActualStateOfWorld) follow(m move, e event, n *attachmentNews, old *attachmentRow) toldOf {
	switch {
	case m.to != NotAttached:
		node := a.node(n.key.node)
		if e == found && node.uid == "" {
			node.uid = n.uid // Of a node that is not there, the record knows who it was.
		}
		return a.put(node, n.key, old, nextRow(m, e, n, node, old))
	case old != nil:
		return a.drop(n.key, old)
	}
	return toldOf{}
}

// nextRow returns what is known of the attachment after a move.
func nextRow(m move, e event, n *attachmentNews, node *knownNode, old *attachmentRow) attachmentRow {
	var row attachmentRow
	if old != nil {
		row = *old
	} else {
		row = newRow(n, node)
	}
	if e == succeeded {
		row.succeed(node)
	}
	if e == succeeded || e == begun {
		row.DetachRequestedSince, row.ForcedDetachAllowed = time.Time{}, false // It is wanted again.
	}
	row.AttachState = m.to
	row.learn(e, n)
	row.attempt = nil
	if m.to == Attaching {
		row.attempt = n.attempt
		if old != nil {
			row.attempt = old.attempt
		}
	}
	if m.tells != asBefore {
		row.Reported = m.tells == listed
	}
	if e == found && n.uid != "" && n.uid != node.uid {
		row.inherit(node)
	}
	return row
}

func newRow(n *attachmentNews, node *knownNode) attachmentRow {
	return attachmentRow{Attachment: Attachment{
		AttachedVolume: operationexecutor.AttachedVolume{
			VolumeName: n.key.volume, NodeName: n.key.node, PluginName: n.pluginName, PluginIsAttachable: true,
		},
		NodeUID: node.uid, InUse: AssumedInUse, Reported: n.inStatus,
	}}
}

// inherit says that the attachment was made while the node had another UID. What the node uses of that time is not known
// before it has said so under its own.
func (r *attachmentRow) inherit(node *knownNode) {
	r.inherited = true
	if r.InUse == NotInUse && !node.listedUse {
		r.InUse = AssumedInUse
	}
}

// succeed takes over that the volume is attached. The path that an earlier node of that name had is none of this one's.
func (r *attachmentRow) succeed(node *knownNode) {
	if r.NodeUID != node.uid {
		r.NodeUID, r.DevicePath = node.uid, ""
	}
	if r.AttachState != Attached && r.InUse == NotInUse {
		r.InUse = AssumedInUse // From now on the node may begin to use it.
	}
}

// learn takes over what is told of the volume. Only success replaces what is known.
func (r *attachmentRow) learn(e event, n *attachmentNews) {
	if n.spec != nil && (e == succeeded || r.VolumeSpec == nil) {
		r.VolumeSpec = n.spec
	}
	if n.devicePath != "" && (e == succeeded || r.DevicePath == "") {
		r.DevicePath = n.devicePath
	}
}

// put makes row that of an attachment, unless it is so already. old is the one that is there, or nil.
func (a *ActualStateOfWorld) put(node *knownNode, key attachmentKey, old *attachmentRow, row attachmentRow) toldOf {
	if old != nil && row == *old {
		return toldOf{}
	}
	reported := row.reportedOtherwise(old)
	if old != nil {
		*old = row
	} else {
		node.count(row.PluginName, +1)
		node.attachments = rows.Insert(node.attachments, &row, key.volume, (*attachmentRow).compareVolume)
		a.volumes[key.volume] = rows.Insert(a.volumes[key.volume], &row, key.node, (*attachmentRow).compareNode)
	}
	if !reported {
		return toldOf{row: true}
	}
	return toldOf{row: true, report: a.reportChange(node, key.volume)}
}

// reportedOtherwise reports whether the node is told something else by the row than by old, which may be nil.
func (r *attachmentRow) reportedOtherwise(old *attachmentRow) bool {
	if old == nil {
		return r.AttachState == Attached // What a restart found in the node's status is there already.
	}
	return r.Reported != old.Reported || r.Reported && r.DevicePath != old.DevicePath
}

// drop forgets an attachment, and its node with it when that has gone.
func (a *ActualStateOfWorld) drop(key attachmentKey, old *attachmentRow) toldOf {
	node := a.nodes[key.node]
	node.attachments = rows.Remove(node.attachments, key.volume, (*attachmentRow).compareVolume)
	rows.SetList(a.volumes, key.volume, rows.Remove(a.volumes[key.volume], key.node, (*attachmentRow).compareNode))
	node.count(old.PluginName, -1)
	told := toldOf{row: true, report: old.Reported && a.reportChange(node, key.volume)}
	if !node.present && len(node.attachments) == 0 {
		delete(a.nodes, key.node)
	}
	return told
}
