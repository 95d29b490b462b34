// Package nodestatus keeps what this node and its control plane say to each other in the status of the node's object, where a
// controller attaches volumes: the node lists the volumes that it uses, the controller those that are attached.
package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/internal/workqueue"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/retry"
)

// readTimeout bounds a report.
const readTimeout = 10 * time.Second

// Reporter has the node's status list volumes as in use; see volumemanager.VolumesInUseReporter.
type Reporter interface {
	// ReportVolumesInUse returns nil when the node's status lists these volumes, sorted, and no others.
	ReportVolumesInUse(ctx context.Context, volumes []v1.UniqueVolumeName) error
}

// Options are what a status needs. All but Recorder are required.
type Options struct {
	// Store has the node's object, Node is its name.
	Store store.Store
	Node  types.NodeName
	// Desired and Actual are the states of the world of this node.
	Desired *cache.DesiredStateOfWorld
	Actual  *cache.ActualStateOfWorld
	// IsAttachedHere reports whether the node has attached a volume by itself, before it had a controller.
	IsAttachedHere func(name v1.UniqueVolumeName) bool
	// MayUseMore reports whether an earlier manager may have left volumes here that are not known yet.
	MayUseMore func(ctx context.Context) bool
	// Look has volumes looked at, Retry as if nothing had failed before.
	Look, Retry func(names []v1.UniqueVolumeName)
	// Notify wakes those who wait for a pod.
	Notify   func(pod volume.UniquePodName)
	Logger   *slog.Logger
	Recorder volume.EventRecorder
}

// Status lists the volumes in use in the node's status, and follows those that it lists as attached. Its methods may be called from
// several goroutines at once. Those that a planner calls do nothing when it is nil: the node attaches by itself then.
type Status struct {
	// Object is the node's object. Reporter writes the list; it is Object unless it is set before Run.
	Object   *Object
	Reporter Reporter

	options Options
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

// New returns the status of a node. It does no I/O.
func New(o Options) *Status {
	object := &Object{NodeStatus: store.NodeStatus{Store: o.Store}, name: o.Node}
	return &Status{Object: object, Reporter: object, options: o, due: workqueue.New[struct{}]()}
}

// Run starts the goroutines that follow the node's object and report, as part of wg. They end with ctx.
func (s *Status) Run(ctx context.Context, wg *sync.WaitGroup) {
	options := store.MirrorOptions{Logger: s.options.Logger, InitialBackoff: retry.First, MaxBackoff: retry.Last}
	wg.Go(func() { store.Follow(ctx, s.options.Store, s, options) })
	wg.Go(func() { s.reportAll(ctx) })
}

// reportAll reports the volumes in use whenever they may have changed, until ctx ends.
func (s *Status) reportAll(ctx context.Context) {
	defer s.due.Stop()
	s.Recheck()
	for {
		if _, ok := s.due.Get(ctx); !ok {
			return
		}
		s.Report(ctx)
	}
}

// Planned implements reconciler.Attachments. A volume that is in use and not reported so, or the reverse, is reported.
func (s *Status) Planned(name v1.UniqueVolumeName, used, unreported bool) {
	if s == nil {
		return
	}
	if due := s.differs(name, used) || unreported; due {
		s.Recheck()
	}
}

// Forgot implements reconciler.Attachments.
func (s *Status) Forgot(name v1.UniqueVolumeName) {
	if s != nil && s.differs(name, false) {
		s.Recheck()
	}
}

// Recheck has the list reported, now or when that may be tried again.
func (s *Status) Recheck() {
	if s == nil {
		return
	}
	s.mu.Lock()
	at := s.retryAt
	s.mu.Unlock()
	s.due.AddAt(struct{}{}, at)
}

// differs reports whether the list may say something else of a volume than whether it is used.
func (s *Status) differs(name v1.UniqueVolumeName, used bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reporting || s.reports.Has(name) != used
}

// AttachedBy implements reconciler.Attachments. What the node has attached by itself, before it had a controller, it detaches by
// itself. What the status does not list, or with another device, is not attached for certain: nothing more is mounted from it, and
// what is mounted stays.
func (s *Status) AttachedBy(name v1.UniqueVolumeName, here *cache.VolumeSnapshot) (controller, contradicted bool) {
	if s == nil || s.options.IsAttachedHere(name) {
		return false, false
	}
	return true, s.contradicts(name, here)
}

// contradicts reports whether the node's status says something else of a volume than what was taken from it. The path of a device
// that is used may be a better one than the status has, and one that only the node can know is not in the status.
func (s *Status) contradicts(name v1.UniqueVolumeName, at *cache.VolumeSnapshot) bool {
	path, listed, seen := s.Object.lookUp(name)
	unused := len(at.Mounts) == 0 && at.DeviceMountState == operationexecutor.DeviceNotMounted
	return seen && (!listed || unused && path != "" && path != at.DevicePath)
}

// Withdrawn returns why a volume that is set up here is not as it should be: the node's status does not list it any more.
func (s *Status) Withdrawn(name v1.UniqueVolumeName) error {
	if s == nil || s.options.IsAttachedHere(name) {
		return nil
	}
	row, ok := s.options.Actual.GetAttachedVolume(name)
	if !ok || !row.PluginIsAttachable {
		return nil
	}
	if _, listed, seen := s.Object.lookUp(name); listed || !seen {
		return nil
	}
	return &operationexecutor.MountPreconditionError{Volume: name, Node: s.options.Node, Err: operationexecutor.ErrNotReportedAttached}
}

// Explain implements reconciler.Attachments: it adds to what a mount waits for why that is not there.
func (s *Status) Explain(missing *operationexecutor.MountPreconditionError) error {
	if s == nil || !errors.Is(missing, operationexecutor.ErrNotReportedInUse) {
		return missing
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		return missing
	}
	return fmt.Errorf("%w: %w", missing, s.err)
}

// Listed implements store.Follower.
func (s *Status) Listed(nodes []*v1.Node) {
	for _, node := range nodes {
		if node.Name == string(s.options.Node) {
			s.see(node)
			return
		}
	}
	s.see(&v1.Node{})
}

// Changed implements store.Follower.
func (s *Status) Changed(event store.EventType, node *v1.Node) {
	switch {
	case node.Name != string(s.options.Node):
	case event == store.Deleted:
		s.see(&v1.Node{})
	default:
		s.see(node)
	}
}

// see takes over what the status of the node says, and wakes those whom that concerns.
func (s *Status) see(node *v1.Node) {
	changed := s.Object.replace(node.Status.VolumesAttached)
	s.options.Retry(changed)
	for _, name := range changed {
		s.tell(name)
	}
	if s.misses(node) {
		s.due.Add(struct{}{})
	}
}

// misses reports whether the list of volumes in use is to be written once more: somebody has changed it, or it could not be
// written before the node's object changed.
func (s *Status) misses(node *v1.Node) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Reporter != Reporter(s.Object) {
		return false
	}
	return s.err != nil || !s.reports.Equal(sets.New(node.Status.VolumesInUse...)) || !isSigned(node)
}

// tell says that a volume which is used here is not listed any more, and wakes those who look at its pods.
func (s *Status) tell(name v1.UniqueVolumeName) {
	err := s.Withdrawn(name)
	if err != nil {
		s.options.Logger.Warn("a volume that is attached here is no longer listed in the node's status; it is left as it is", "volume", name)
	}
	for _, mounted := range s.options.Actual.GetPossiblyMountedVolumesForVolume(name) {
		if err != nil && mounted.Pod != nil && s.options.Recorder != nil {
			s.options.Recorder.Eventf(mounted.Pod, v1.EventTypeWarning, operationexecutor.ReasonVolumeNotAttached, "%v", err)
		}
		s.options.Notify(mounted.PodName)
	}
}

// Report has the node's status list the volumes in use.
func (s *Status) Report(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	s.mu.Lock()
	s.reporting = true
	s.mu.Unlock()
	list, err := s.List(ctx)
	if err == nil {
		err = s.Reporter.ReportVolumesInUse(ctx, slices.Clone(list))
	}
	switch done, failed := s.reported(list, err); {
	case done:
		s.options.Desired.MarkVolumesReportedInUse(list)
	case failed:
		s.options.Look(s.unreported()) // They are to say why they wait.
	}
}

// unreported returns the volumes that wait for being reported.
func (s *Status) unreported() []v1.UniqueVolumeName {
	var names []v1.UniqueVolumeName
	for row := range s.options.Desired.AllVolumesToMount() {
		if row.PluginIsAttachable && !row.ReportedInUse {
			names = append(names, row.VolumeName)
		}
	}
	return names
}

// List returns the volumes that the node's status has to list. What is not known yet to be unused is in it.
func (s *Status) List(ctx context.Context) ([]v1.UniqueVolumeName, error) {
	earlier, err := s.readEarlier(ctx)
	if err != nil {
		return nil, err
	}
	keeps := s.options.MayUseMore(ctx)
	names := cache.VolumesInUse(s.options.Desired, s.options.Actual) // After it is known that all pods are there.
	if keeps {
		names = append(names, earlier...)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// readEarlier returns what the status listed before this manager began.
func (s *Status) readEarlier(ctx context.Context) ([]v1.UniqueVolumeName, error) {
	s.mu.Lock()
	earlier, read := s.earlier, s.read
	s.mu.Unlock()
	if read {
		return earlier, nil
	}
	earlier, err := s.Object.listed(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.earlier, s.read = earlier, true
	return earlier, nil
}

// reported notes how a report ended: done says that the status has the list now.
func (s *Status) reported(list []v1.UniqueVolumeName, err error) (done, failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reporting = false
	if err == nil || errors.Is(err, ErrReportedLater) {
		s.reports = sets.New(list...)
		s.failures, s.retryAt, s.err = 0, time.Time{}, nil
		return err == nil, false
	}
	s.failures++
	s.err = fmt.Errorf("the volumes in use could not be reported: %w", err)
	s.options.Logger.Warn("the volumes in use could not be reported", "error", err)
	s.retryAt = retry.At(s.failures)
	s.due.AddAt(struct{}{}, s.retryAt)
	return false, true
}
