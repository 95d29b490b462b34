// Package nodestatus writes the volumes in use into the status of the node's object, and follows the volumes that a controller
// lists there as attached.
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

// readTimeout bounds one report.
const readTimeout = 10 * time.Second

// Reporter writes the list of volumes in use to the node's status; see volumemanager.VolumesInUseReporter.
type Reporter interface {
	// ReportVolumesInUse returns nil when the node's status lists exactly these volumes. They are sorted.
	ReportVolumesInUse(ctx context.Context, volumes []v1.UniqueVolumeName) error
}

// Options are what a status needs. All but Recorder are required.
type Options struct {
	// Store has the node's object; Node is its name.
	Store store.Store
	Node  types.NodeName
	// Desired and Actual are the states of the world of this node.
	Desired *cache.DesiredStateOfWorld
	Actual  *cache.ActualStateOfWorld
	// IsAttachedHere reports whether the node itself has attached a volume, at a time when it had no controller.
	IsAttachedHere func(name v1.UniqueVolumeName) bool
	// MayUseMore reports whether an earlier manager may have left volumes here that are not known yet.
	MayUseMore func(ctx context.Context) bool
	// Plan plans volumes again. Retry does so at once, without the backoff of earlier failures.
	Plan, Retry func(names []v1.UniqueVolumeName)
	// Notify wakes the callers that wait for a pod.
	Notify   func(pod volume.UniquePodName)
	Logger   *slog.Logger
	Recorder volume.EventRecorder
}

// Status reports the volumes in use in the node's status, and follows the volumes that the status lists as attached. Its
// methods may be called from several goroutines at once. A nil Status means that the node attaches its volumes itself: the
// methods that the planner calls then do nothing.
type Status struct {
	// Object is the node's object. Reporter writes the list; it is Object unless the manager sets another one before Run.
	Object   *Object
	Reporter Reporter

	options Options
	// due holds its one key when a report may be necessary.
	due *workqueue.Queue[struct{}]

	mu sync.Mutex
	// earlier is the list of volumes in use before this manager's first report; read is false until it was read.
	earlier []v1.UniqueVolumeName
	read    bool
	// reports is the list that was reported last. reporting says that a report is under way: its list may hold volumes that
	// are no longer in use.
	reports   sets.Set[v1.UniqueVolumeName]
	reporting bool
	// failures counts the reports that have failed in a row, and err is the last failure. The next report begins at retryAt
	// or later.
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

// Planned implements reconciler.Attachments. It starts a report if the last one differs from what is in use.
func (s *Status) Planned(name v1.UniqueVolumeName, used, unreported bool) {
	if s == nil {
		return
	}
	if due := s.differs(name, used) || unreported; due {
		s.Recheck()
	}
}

// Forgot implements reconciler.Attachments. It starts a report if the last one may still list the volume.
func (s *Status) Forgot(name v1.UniqueVolumeName) {
	if s != nil && s.differs(name, false) {
		s.Recheck()
	}
}

// Recheck starts a report: now, or after a failure when the backoff ends.
func (s *Status) Recheck() {
	if s == nil {
		return
	}
	s.mu.Lock()
	at := s.retryAt
	s.mu.Unlock()
	s.due.AddAt(struct{}{}, at)
}

// differs reports whether the last report, or the one under way, may be wrong about a volume.
func (s *Status) differs(name v1.UniqueVolumeName, used bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reporting || s.reports.Has(name) != used
}

// AttachedBy implements reconciler.Attachments. The node itself detaches a volume that it has attached itself, before it had
// a controller. contradicted means that the status does not list the volume, or lists another device. Its attachment is then
// uncertain: nothing more is mounted from it, and existing mounts stay.
func (s *Status) AttachedBy(name v1.UniqueVolumeName, here *cache.VolumeSnapshot) (controller, contradicted bool) {
	if s == nil || s.options.IsAttachedHere(name) {
		return false, false
	}
	return true, s.contradicts(name, here)
}

// contradicts reports whether the node's status contradicts the recorded attachment. Once the volume is in use, another
// device path is no contradiction: the node may know a better path. An empty path in the status is none either: only the
// node can know some paths.
func (s *Status) contradicts(name v1.UniqueVolumeName, at *cache.VolumeSnapshot) bool {
	path, listed, seen := s.Object.lookUp(name)
	unused := len(at.Mounts) == 0 && at.DeviceMountState == operationexecutor.DeviceNotMounted
	return seen && (!listed || unused && path != "" && path != at.DevicePath)
}

// Withdrawn returns an error if a volume that is set up here is missing from the attached volumes of the node's status.
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

// Explain implements reconciler.Attachments. If a mount waits for a report of volumes in use, it adds why the last report
// failed.
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
			s.update(node)
			return
		}
	}
	s.update(&v1.Node{})
}

// Changed implements store.Follower.
func (s *Status) Changed(event store.EventType, node *v1.Node) {
	switch {
	case node.Name != string(s.options.Node):
	case event == store.Deleted:
		s.update(&v1.Node{})
	default:
		s.update(node)
	}
}

// update stores the node's attached volumes, retries the volumes that have changed, and wakes the callers that wait for
// their pods.
func (s *Status) update(node *v1.Node) {
	changed := s.Object.replace(node.Status.VolumesAttached)
	s.options.Retry(changed)
	for _, name := range changed {
		s.reportWithdrawn(name)
	}
	if s.mustRewrite(node) {
		s.due.Add(struct{}{})
	}
}

// mustRewrite reports whether the list of volumes in use has to be written again: another writer has changed it, or the last
// write failed.
func (s *Status) mustRewrite(node *v1.Node) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Reporter != Reporter(s.Object) {
		return false
	}
	return s.err != nil || !s.reports.Equal(sets.New(node.Status.VolumesInUse...)) || !isSigned(node)
}

// reportWithdrawn logs and records events if a volume in use is no longer listed as attached. It wakes the callers that wait for
// the volume's pods.
func (s *Status) reportWithdrawn(name v1.UniqueVolumeName) {
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

// Report writes the list of volumes in use to the node's status.
func (s *Status) Report(ctx context.Context) {
	if s == nil {
		return
	}
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
		s.options.Plan(s.unreported()) // Their plans show why they wait.
	}
}

// unreported returns the volumes that wait for a report.
func (s *Status) unreported() []v1.UniqueVolumeName {
	var names []v1.UniqueVolumeName
	for row := range s.options.Desired.AllVolumesToMount() {
		if row.PluginIsAttachable && !row.ReportedInUse {
			names = append(names, row.VolumeName)
		}
	}
	return names
}

// List returns the volumes that the node's status has to list, including those that are not yet known to be unused.
func (s *Status) List(ctx context.Context) ([]v1.UniqueVolumeName, error) {
	earlier, err := s.readEarlier(ctx)
	if err != nil {
		return nil, err
	}
	keeps := s.options.MayUseMore(ctx)
	names := cache.VolumesInUse(s.options.Desired, s.options.Actual) // after MayUseMore: once that is false, all pods are known
	if keeps {
		names = append(names, earlier...)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// readEarlier returns the list of volumes in use before this manager's first report.
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

// reported notes the result of a report. done means that the status shows the list now; failed, that the report is retried
// later.
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
