// Package reconciler brings each volume of a node to the desired state: it plans the next operation of a volume, and
// runs it.
//
// Every change of a volume adds the volume to the queue. A worker takes it from there, reads its desired and actual
// state, plans, and runs the first operation of the plan. It repeats this until nothing is due, or until the rest has
// to wait. See docs/decisions, 0112 and 0170.
package reconciler

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/changes"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// ActualState is the actual state of the world. Operations write it.
type ActualState interface {
	operationexecutor.ActualStateOfWorldMounterUpdater
	operationexecutor.ActualStateOfWorldAttacherUpdater
	// SnapshotInto reads the whole state of a volume into its argument. It returns false for an unknown volume.
	SnapshotInto(s *cache.VolumeSnapshot, name v1.UniqueVolumeName) (known bool)
	// SnapshotOfPodInto reads the state of a volume for a pod, and the set-up of one other pod.
	SnapshotOfPodInto(s *cache.VolumeSnapshot, name v1.UniqueVolumeName, pod volume.UniquePodName) (known bool)
	// GetMountedVolume returns the set-up of a volume for a pod, and false when there is none.
	GetMountedVolume(name v1.UniqueVolumeName, pod volume.UniquePodName) (cache.MountedVolume, bool)
	// VolumesOfPodNamed returns the volumes of one plugin with one inner name that are, or may be, set up for a pod.
	VolumesOfPodNamed(pod volume.UniquePodName, plugin, inner string) []v1.UniqueVolumeName
	// DeleteVolume forgets a volume. It fails if anything is left of it.
	DeleteVolume(name v1.UniqueVolumeName) error
}

// Pods reports which volumes pods use.
type Pods interface {
	// Uses reports whether a pod that was added uses a volume.
	Uses(pod volume.UniquePodName, name v1.UniqueVolumeName) bool
	// MayUse reports whether the volumes of a pod are not completely known.
	MayUse(pod volume.UniquePodName) bool
	// MayBeWanted reports whether a pod that is not known yet may need a volume that a restart has found.
	MayBeWanted(name v1.UniqueVolumeName) bool
}

// Records reports the volumes of an earlier manager.
type Records interface {
	// Prove returns why the record of a found volume is not trusted.
	Prove(name v1.UniqueVolumeName) error
	// Reuse lets a pod use a found set-up unchanged, and reports whether that is possible.
	Reuse(ctx context.Context, row *operationexecutor.VolumeToMount, found *cache.MountedVolume) bool
	// Forget drops all data about a volume of which nothing is left.
	Forget(name v1.UniqueVolumeName)
}

// Attachments reports the node's status, if a controller attaches volumes.
type Attachments interface {
	// AttachedBy reports whether a controller attaches a volume, and whether the node's status contradicts its recorded
	// attachment.
	AttachedBy(name v1.UniqueVolumeName, row *cache.VolumeSnapshot) (controller, contradicted bool)
	// Planned is called with each planned volume. used says that the volume is in use here; unreported, that the status
	// must list it and may not do so yet.
	Planned(name v1.UniqueVolumeName, used, unreported bool)
	// Forgot is called with a volume when nothing of it is left.
	Forgot(name v1.UniqueVolumeName)
	// Explain adds the reason to the error of an operation that waits.
	Explain(missing *operationexecutor.MountPreconditionError) error
}

// Expansions reports which volumes must be expanded.
type Expansions interface {
	// MustExpand reports whether a volume of known size is smaller than a pod needs.
	MustExpand(row *operationexecutor.VolumeToMount, has resource.Quantity) bool
	// Watch starts or stops following the claim of a volume.
	Watch(name v1.UniqueVolumeName, claim v1.ObjectReference, grows bool)
	// IsExpanding reports whether the claim of a volume is followed.
	IsExpanding(name v1.UniqueVolumeName) bool
	// Awaits reports whether a failed expansion waits for a change of the claim, and not for a time.
	Awaits(name v1.UniqueVolumeName, err error) bool
}

// Cleaner removes the remains of a pod after an operation.
type Cleaner interface {
	// RemovePodDirs removes the directories of a pod after a teardown that has succeeded, and reports whether the pod's own directory is
	// gone.
	RemovePodDirs(o operationexecutor.OperationInfo) (gone bool)
	// LastTornDown is called when the last operation of a pod, a teardown, ends, before its end is visible.
	LastTornDown(pod volume.UniquePodName)
	// Ended is called after the end of an operation for a pod, or for a volume as a whole.
	Ended(pod volume.UniquePodName)
}

// Options are the dependencies of a reconciler. All fields are required.
type Options struct {
	// Node is this node.
	Node types.NodeName
	// WorkersPerPlugin is the number of workers of a plugin, without those in slow or abandoned calls.
	WorkersPerPlugin int
	// Desired and Actual are the states of the world of this node.
	Desired *cache.DesiredStateOfWorld
	Actual  ActualState
	// Changes wakes waiters and followers of volumes.
	Changes *changes.Hub
	// OnlyTearsDown reports whether nothing may be attached, staged, set up or expanded any more.
	OnlyTearsDown func() bool
	// Pods reports which volumes pods use, Records the volumes of an earlier manager.
	Pods    Pods
	Records Records
	// Attachments reports the node's status, Expansions the volumes to expand.
	Attachments Attachments
	Expansions  Expansions
	// Cleaner removes the remains of a pod.
	Cleaner Cleaner
}

// Reconciler plans volumes and runs their operations. Make it with [New].
type Reconciler struct {
	Options
	queue    *queue
	executor *operationexecutor.Executor // set by Start
	planned  atomic.Uint64

	// mu guards the fields below. No other code is called while it is held.
	mu      sync.Mutex
	running operations
	// deferred holds the volumes that wait for the end of an operation on the same volume, and are planned then.
	deferred map[v1.UniqueVolumeName][]volume.UniquePodName
	// waiting holds the volumes of a pod that wait for another volume at their path, and are planned when an operation for
	// the pod has ended.
	waiting  waitingForPath
	failures failures
}

// New returns a reconciler. It starts no goroutine.
func New(o Options) *Reconciler {
	return &Reconciler{
		Options: o, queue: newQueue(o.WorkersPerPlugin),
		deferred: make(map[v1.UniqueVolumeName][]volume.UniquePodName), waiting: waitingForPath{},
		failures: newFailures(),
	}
}

// Start starts to work on the queue, with operations of executor, until ctx ends. Call it once.
func (r *Reconciler) Start(ctx context.Context, executor *operationexecutor.Executor) {
	r.executor = executor
	r.queue.start(func(w *worker) { r.work(ctx, w) }, func() bool { return ctx.Err() != nil })
}

// Stop ends the work. Running operations continue.
func (r *Reconciler) Stop() { r.queue.stop() }

// Wait returns, after Stop, when no worker is left except those in abandoned calls.
func (r *Reconciler) Wait() { r.queue.wait() }

// Add queues a volume to be planned for a pod or, without one, for all pods.
func (r *Reconciler) Add(h podvolume.Key) { r.queue.Add(h) }

// AddPod queues volumes to be planned for a pod.
func (r *Reconciler) AddPod(pod volume.UniquePodName, names []v1.UniqueVolumeName) {
	r.queue.AddPod(pod, names)
}

// AddAll queues volumes to be planned for all pods.
func (r *Reconciler) AddAll(names []v1.UniqueVolumeName) { r.queue.AddPod("", names) }

// Retry queues a volume and drops its earlier failures and their back-off.
func (r *Reconciler) Retry(h podvolume.Key) {
	if r.executor != nil {
		r.executor.ResetBackoff(operationexecutor.Key{Volume: h.Volume, Pod: h.Pod})
	}
	r.queue.Add(h)
}

// RetryAll is Retry for several volumes.
func (r *Reconciler) RetryAll(names []v1.UniqueVolumeName) {
	for _, name := range names {
		r.Retry(podvolume.Key{Volume: name})
	}
}

// Planned returns the number of plans made.
func (r *Reconciler) Planned() uint64 { return r.planned.Load() }

// IsIdle reports whether no volume waits to be planned, and no operation runs.
func (r *Reconciler) IsIdle() bool { return r.IsQuiet() && r.queue.isEmpty() }

// IsQuiet reports whether no operation runs.
func (r *Reconciler) IsQuiet() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.running) == 0
}

// Running returns the volumes and pods of the running operations.
func (r *Reconciler) Running() []podvolume.Key {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []podvolume.Key
	for _, op := range r.running {
		all = append(all, podvolume.Key{Volume: op.volume, Pod: op.pod})
	}
	return all
}

// Operations returns the operations on a volume that concern a pod.
func (r *Reconciler) Operations(name v1.UniqueVolumeName, pod volume.UniquePodName) []Operation {
	return r.appendOperations(nil, name, pod)
}

// appendOperations adds the operations on a volume that concern a pod, or all when there is no pod.
func (r *Reconciler) appendOperations(into []Operation, name v1.UniqueVolumeName, pod volume.UniquePodName) []Operation {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, op := range r.running {
		if op.concerns(name, pod) {
			into = append(into, op.Operation)
		}
	}
	return into
}

// PodsOfOperations returns the pods for which operations run.
func (r *Reconciler) PodsOfOperations() []volume.UniquePodName {
	r.mu.Lock()
	defer r.mu.Unlock()
	var pods []volume.UniquePodName
	for _, op := range r.running {
		if op.pod != "" {
			pods = append(pods, op.pod)
		}
	}
	return pods
}

// VolumesOfOperations returns the volumes that are being set up for a pod, or taken away from it.
func (r *Reconciler) VolumesOfOperations(pod volume.UniquePodName) []v1.UniqueVolumeName {
	r.mu.Lock()
	defer r.mu.Unlock()
	var names []v1.UniqueVolumeName
	for _, op := range r.running {
		if op.pod == pod {
			names = append(names, op.volume)
		}
	}
	return names
}

// IsTearingDown reports whether a volume is being taken away from a pod.
func (r *Reconciler) IsTearingDown(name v1.UniqueVolumeName, pod volume.UniquePodName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.running, func(op *operation) bool {
		return op.volume == name && op.pod == pod && op.kind == operationexecutor.OpUnmount
	})
}

// Failure returns why an operation for a pod, or on the volume as a whole, has to wait.
func (r *Reconciler) Failure(h podvolume.Key) (Failure, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, ok := r.failures.of[h.Volume][h.Pod]
	return f, ok
}

// topicOf returns the topic of a change: the volumes of a pod, or the volume as a whole.
func topicOf(h podvolume.Key) changes.Topic {
	if h.Pod != "" {
		return changes.Topic{Pod: types.UID(h.Pod)}
	}
	return changes.Topic{Volume: h.Volume}
}
