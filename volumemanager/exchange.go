package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/internal/workqueue"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/retry"
)

// AttachedBy says who attaches volumes to a node and detaches them.
type AttachedBy uint8

// Who attaches. To change from one to the other on a node that has volumes is safe: what the node has attached by itself
// it detaches by itself.
const (
	// AttachedByNode: the manager does, through the plugins.
	AttachedByNode AttachedBy = iota
	// AttachedByController: a controller does, and says so in the status of the node's object in the store
	// (status.volumesAttached), with the path of each device. The manager never attaches or detaches. Before it mounts a
	// volume it has the node's status list it as in use (status.volumesInUse), and it takes it from that list only when
	// nothing is left of it here for certain; until then a controller must not detach it. Needs Options.Store.
	//
	// The list of an earlier manager stays until PodsComplete, and beyond it where records were damaged. Without
	// records (Options.NoRecords) what that manager left mounted is not known, and leaves the list with PodsComplete.
	AttachedByController
)

// checkAttachment says what is wrong with the options about attaching.
func (o Options) checkAttachment() error {
	switch {
	case o.AttachedBy > AttachedByController:
		return fmt.Errorf("AttachedBy %d: give one of its constants: %w", o.AttachedBy, volume.ErrInvalid)
	case o.AttachedBy == AttachedByController && o.Store == nil:
		return fmt.Errorf("AttachedByController needs Store, where the node's status tells what is attached: %w", volume.ErrInvalid)
	case o.AttachedBy != AttachedByController && o.VolumesInUse != nil:
		return fmt.Errorf("VolumesInUse is set, but the node attaches by itself and reports to nobody: set AttachedBy: %w", volume.ErrInvalid)
	}
	return nil
}

// exchange is what this node and its control plane tell each other by the node's status, where a controller attaches. Its
// methods do nothing when it is nil: the node attaches by itself then.
type exchange struct {
	m        *Manager
	status   *nodeStatus
	reporter VolumesInUseReporter
	// due holds its one key when the list of volumes in use may have to be reported.
	due *workqueue.Queue[struct{}]

	mu sync.Mutex
	// earlier is what the status listed as in use before this manager did; read is false until that is known.
	earlier []v1.UniqueVolumeName
	read    bool
	// reports is what was reported last, and reporting says that a list is being made or on its way: it may hold what is not
	// used any more.
	reports   sets.Set[v1.UniqueVolumeName]
	reporting bool
	// failures and err tell of the last reports, retryAt when the next is made at the earliest.
	failures int
	err      error
	retryAt  time.Time
}

func newExchange(m *Manager) *exchange {
	if m.options.AttachedBy != AttachedByController {
		return nil
	}
	x := &exchange{
		m: m, status: &nodeStatus{NodeStatus: store.NodeStatus{Store: m.options.Store}, name: m.node()},
		reporter: m.options.VolumesInUse, due: workqueue.New[struct{}](),
	}
	if x.reporter == nil {
		x.reporter = x.status
	}
	return x
}

func (x *exchange) stop() {
	if x != nil {
		x.due.Stop()
	}
}

// Planned implements reconciler.Attachments. A volume that is in use and not reported so, or the reverse, is reported.
func (x *exchange) Planned(name v1.UniqueVolumeName, used, unreported bool) {
	if x != nil && (x.differs(name, used) || unreported) {
		x.kick()
	}
}

// Forgot implements reconciler.Attachments.
func (x *exchange) Forgot(name v1.UniqueVolumeName) {
	if x != nil && x.differs(name, false) {
		x.kick()
	}
}

// podsComplete is told when what an earlier manager left in the list need not stay there any more.
func (x *exchange) podsComplete() {
	if x != nil {
		x.kick()
	}
}

// kick has the list reported, now or when that may be tried again.
func (x *exchange) kick() {
	x.mu.Lock()
	at := x.retryAt
	x.mu.Unlock()
	x.due.AddAt(struct{}{}, at)
}

// differs reports whether the list may say something else of a volume than whether it is used.
func (x *exchange) differs(name v1.UniqueVolumeName, used bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.reporting || x.reports.Has(name) != used
}

// AttachedBy implements reconciler.Attachments. What the node has attached by itself, before it had a controller, it
// detaches by itself. What the status does not list, or with another device, is not attached for certain: nothing more is
// mounted from it, and what is mounted stays.
func (x *exchange) AttachedBy(name v1.UniqueVolumeName, row *cache.VolumeSnapshot) (controller, contradicted bool) {
	if x == nil || x.m.journal.HasAttachment(name) {
		return false, false
	}
	return true, x.doubts(name, row)
}

// doubts reports whether the node's status says something else of a volume than what was taken from it. The path of a
// device that is used may be a better one than the status has, and one that only the node can know is not in the status.
func (x *exchange) doubts(name v1.UniqueVolumeName, at *cache.VolumeSnapshot) bool {
	path, listed, seen := x.status.lookUp(name)
	unused := len(at.Mounts) == 0 && at.DeviceMountState == operationexecutor.DeviceNotMounted
	return seen && (!listed || unused && path != "" && path != at.DevicePath)
}

// withdrawn returns why a volume that is set up here is not as it should be: the node's status does not list it any more.
func (x *exchange) withdrawn(name v1.UniqueVolumeName) error {
	if x == nil || x.m.journal.HasAttachment(name) {
		return nil
	}
	row, ok := x.m.actual.GetAttachedVolume(name)
	if !ok || !row.PluginIsAttachable {
		return nil
	}
	if _, listed, seen := x.status.lookUp(name); listed || !seen {
		return nil
	}
	return &operationexecutor.MountPreconditionError{Volume: name, Node: x.m.node(), Err: operationexecutor.ErrNotReportedAttached}
}

// Explain implements reconciler.Attachments: it adds to what a mount waits for why that is not there.
func (x *exchange) Explain(missing *operationexecutor.MountPreconditionError) error {
	if x == nil || !errors.Is(missing, operationexecutor.ErrNotReportedInUse) {
		return missing
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err == nil {
		return missing
	}
	return fmt.Errorf("%w: %w", missing, x.err)
}

// listed implements feed.
func (x *exchange) listed(objects []runtime.Object) {
	for _, obj := range objects {
		if node, ok := obj.(*v1.Node); ok && node.Name == string(x.m.node()) {
			x.see(node)
			return
		}
	}
	x.see(&v1.Node{})
}

// changed implements feed.
func (x *exchange) changed(event store.Event) {
	node, ok := event.Object.(*v1.Node)
	switch {
	case !ok || node.Name != string(x.m.node()):
	case event.Type == store.Deleted:
		x.see(&v1.Node{})
	default:
		x.see(node)
	}
}

// see takes over what the status of the node says, and wakes those whom that concerns.
func (x *exchange) see(node *v1.Node) {
	changed := x.status.replace(node.Status.VolumesAttached)
	x.m.retryAll(changed)
	for _, name := range changed {
		x.tell(name)
	}
	if x.misses(node) {
		x.due.Add(struct{}{})
	}
}

// misses reports whether the list of volumes in use is to be written once more: somebody has changed it, or it could not be
// written before the node's object changed.
func (x *exchange) misses(node *v1.Node) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.reporter != VolumesInUseReporter(x.status) {
		return false
	}
	return x.err != nil || !x.reports.Equal(sets.New(node.Status.VolumesInUse...)) || !isSigned(node)
}

// tell says that a volume which is used here is not listed any more, and wakes those who look at its pods.
func (x *exchange) tell(name v1.UniqueVolumeName) {
	err := x.withdrawn(name)
	if err != nil {
		x.m.options.Logger.Warn("a volume that is attached here is no longer listed in the node's status; it is left as it is", "volume", name)
	}
	for _, mounted := range x.m.actual.GetPossiblyMountedVolumesForVolume(name) {
		if err != nil && mounted.Pod != nil && x.m.options.Recorder != nil {
			x.m.options.Recorder.Eventf(mounted.Pod, v1.EventTypeWarning, operationexecutor.ReasonVolumeNotAttached, "%v", err)
		}
		x.m.changes.Notify(mounted.PodName)
	}
}

// reportAll reports the volumes in use whenever they may have changed, until ctx ends.
func (x *exchange) reportAll(ctx context.Context) {
	x.kick()
	for {
		if _, ok := x.due.Get(ctx); !ok {
			return
		}
		x.report(ctx)
	}
}

// report has the node's status list the volumes in use.
func (x *exchange) report(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	x.mu.Lock()
	x.reporting = true
	x.mu.Unlock()
	list, err := x.list(ctx)
	if err == nil {
		err = x.reporter.ReportVolumesInUse(ctx, slices.Clone(list))
	}
	switch done, failed := x.reported(list, err); {
	case done:
		x.m.desired.MarkVolumesReportedInUse(list)
	case failed:
		x.m.volumes.AddAll(x.unreported()) // They are to say why they wait.
	}
}

// unreported returns the volumes that wait for being reported.
func (x *exchange) unreported() []v1.UniqueVolumeName {
	var names []v1.UniqueVolumeName
	for row := range x.m.desired.AllVolumesToMount() {
		if row.PluginIsAttachable && !row.ReportedInUse {
			names = append(names, row.VolumeName)
		}
	}
	return names
}

// list returns the volumes that the node's status has to list. What is not known yet to be unused is in it.
func (x *exchange) list(ctx context.Context) ([]v1.UniqueVolumeName, error) {
	earlier, err := x.readEarlier(ctx)
	if err != nil {
		return nil, err
	}
	// What could not be rebuilt may be any of them.
	keeps := !x.m.recovery.IsComplete() || len(x.m.orphans.Live(ctx)) > 0
	names := x.m.GetVolumesInUse() // After it is known that all pods are there.
	if keeps {
		names = append(names, earlier...)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// readEarlier returns what the status listed before this manager began.
func (x *exchange) readEarlier(ctx context.Context) ([]v1.UniqueVolumeName, error) {
	x.mu.Lock()
	earlier, read := x.earlier, x.read
	x.mu.Unlock()
	if read {
		return earlier, nil
	}
	earlier, err := x.status.listed(ctx)
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.earlier, x.read = earlier, true
	return earlier, nil
}

// reported notes how a report ended: done says that the status has the list now.
func (x *exchange) reported(list []v1.UniqueVolumeName, err error) (done, failed bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.reporting = false
	if err == nil || errors.Is(err, ErrReportedLater) {
		x.reports = sets.New(list...)
		x.failures, x.retryAt, x.err = 0, time.Time{}, nil
		return err == nil, false
	}
	x.failures++
	x.err = fmt.Errorf("the volumes in use could not be reported: %w", err)
	x.m.options.Logger.Warn("the volumes in use could not be reported", "error", err)
	x.retryAt = retry.At(x.failures)
	x.due.AddAt(struct{}{}, x.retryAt)
	return false, true
}
