// Package reconciler makes each volume of a node what the pods of the node want: it plans what is to be done to a volume, and
// does it.
//
// What changes a volume adds it to the queue. A worker takes it from there, reads what is wanted and what is known of it, plans, and
// runs the first operation of the plan, until nothing is to be done or the rest has to wait. See docs/decisions, 0112 and 0170.
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
	// SnapshotInto fills in all that is known of a volume. It returns false when nothing is.
	SnapshotInto(s *cache.VolumeSnapshot, name v1.UniqueVolumeName) (known bool)
	// SnapshotOfPodInto fills in what is known of a volume for a pod, and the set-up of one other pod.
	SnapshotOfPodInto(s *cache.VolumeSnapshot, name v1.UniqueVolumeName, pod volume.UniquePodName) (known bool)
	// DeleteVolume forgets a volume. It fails when anything is left of it.
	DeleteVolume(name v1.UniqueVolumeName) error
}

// Pods tells what pods use.
type Pods interface {
	// Uses reports whether a pod that was added uses a volume.
	Uses(pod volume.UniquePodName, name v1.UniqueVolumeName) bool
	// MayUse reports whether it is not known which volumes a pod uses.
	MayUse(pod volume.UniquePodName) bool
	// MayBeWanted reports whether a pod that is not known yet may want a volume, which a restart has found.
	MayBeWanted(name v1.UniqueVolumeName) bool
}

// Records tells what an earlier manager has left.
type Records interface {
	// Prove returns why the record by which a volume was found is not trusted.
	Prove(name v1.UniqueVolumeName) error
	// Reuse lets a pod use a set-up that was found, as it is, and reports whether that can be.
	Reuse(ctx context.Context, row *operationexecutor.VolumeToMount, found *cache.MountedVolume) bool
	// Forget drops everything that is kept about a volume when nothing of the volume is left.
	Forget(name v1.UniqueVolumeName)
}

// Attachments tells what the node's status says, where a controller attaches volumes.
type Attachments interface {
	// AttachedBy reports whether a controller attaches a volume, and whether the node's status contradicts what is known of it.
	AttachedBy(name v1.UniqueVolumeName, row *cache.VolumeSnapshot) (controller, contradicted bool)
	// Planned is called with each volume that was planned. used says that the volume is in use here; unreported, that the
	// status must list it and may not.
	Planned(name v1.UniqueVolumeName, used, unreported bool)
	// Forgot is called with each volume when nothing of it is left.
	Forgot(name v1.UniqueVolumeName)
	// Explain adds to what an operation waits for why that is missing.
	Explain(missing *operationexecutor.MountPreconditionError) error
}

// Expansions tells which volumes are to grow.
type Expansions interface {
	// MustGrow reports whether a volume that has a size is smaller than a pod wants it.
	MustGrow(row *operationexecutor.VolumeToMount, has resource.Quantity) bool
	// Watch begins or ends to watch the claim of a volume, which is to grow or not.
	Watch(name v1.UniqueVolumeName, claim v1.ObjectReference, grows bool)
	// IsGrowing reports whether the claim of a volume is watched.
	IsGrowing(name v1.UniqueVolumeName) bool
	// Awaits reports whether an expansion that failed waits for a change of the claim, and not for a time.
	Awaits(name v1.UniqueVolumeName, err error) bool
}

// Cleaner removes what is left of a pod when an operation has ended.
type Cleaner interface {
	// RemovePodDirs removes the directories of a pod after a teardown, and reports whether the pod's own is gone.
	RemovePodDirs(o operationexecutor.OperationInfo) (gone bool)
	// LastTornDown is called when the last operation of a pod ends, a teardown, before that is known.
	LastTornDown(pod volume.UniquePodName)
	// Ended is called when an operation for a pod, or for a volume as a whole, is out of the way.
	Ended(pod volume.UniquePodName)
}

// Options says what a reconciler works with. All fields are required.
type Options struct {
	// Node is this node.
	Node types.NodeName
	// WorkersPerPlugin is how many workers a plugin has; those that are stuck in calls are not counted.
	WorkersPerPlugin int
	// Desired is what pods want, Actual what is known.
	Desired *cache.DesiredStateOfWorld
	Actual  ActualState
	// Changes wakes waiters and followers of volumes.
	Changes *changes.Hub
	// OnlyTakesAway reports whether nothing is to be attached, staged, set up or grown any more.
	OnlyTakesAway func() bool
	// Pods tells what pods use, Records what an earlier manager has left.
	Pods    Pods
	Records Records
	// Attachments tells what the node's status says, Expansions which volumes are to grow.
	Attachments Attachments
	Expansions  Expansions
	// Cleaner removes what is left of a pod.
	Cleaner Cleaner
}

// Reconciler plans volumes and runs their operations. Make it with [New].
type Reconciler struct {
	Options
	queue    *queue
	executor *operationexecutor.Executor // set by Start
	planned  atomic.Uint64

	// mu guards what follows. Nothing else is called while it is held.
	mu      sync.Mutex
	running operations
	// deferred is what could not begin beside an operation on the same volume, and is planned when one ends.
	deferred map[v1.UniqueVolumeName][]volume.UniquePodName
	failures failures
}

// New returns a reconciler. It starts nothing.
func New(o Options) *Reconciler {
	return &Reconciler{
		Options: o, queue: newQueue(o.WorkersPerPlugin),
		deferred: make(map[v1.UniqueVolumeName][]volume.UniquePodName), failures: newFailures(),
	}
}

// Start begins to work on what is in the queue, with operations of executor, until ctx ends. It is called once.
func (r *Reconciler) Start(ctx context.Context, executor *operationexecutor.Executor) {
	r.executor = executor
	r.queue.start(func(w *worker) { r.work(ctx, w) }, func() bool { return ctx.Err() != nil })
}

// Stop ends the work. Operations that run go on.
func (r *Reconciler) Stop() { r.queue.stop() }

// Wait returns, after Stop, when no worker is left but those whose call was abandoned.
func (r *Reconciler) Wait() { r.queue.wait() }

// Add has a volume planned for a pod or, without one, for all pods.
func (r *Reconciler) Add(h podvolume.Key) { r.queue.Add(h) }

// AddPod has volumes planned for a pod.
func (r *Reconciler) AddPod(pod volume.UniquePodName, names []v1.UniqueVolumeName) {
	r.queue.AddPod(pod, names)
}

// AddAll has volumes planned for all pods.
func (r *Reconciler) AddAll(names []v1.UniqueVolumeName) { r.queue.AddPod("", names) }

// Retry has a volume planned as if nothing had failed before.
func (r *Reconciler) Retry(h podvolume.Key) {
	if r.executor != nil {
		r.executor.ResetBackoff(operationexecutor.Key{Volume: h.Volume, Pod: h.Pod})
	}
	r.queue.Add(h)
}

// Planned returns how many plans were made.
func (r *Reconciler) Planned() uint64 { return r.planned.Load() }

// IsIdle reports whether nothing waits to be planned, and no operation runs.
func (r *Reconciler) IsIdle() bool { return r.IsQuiet() && r.queue.isEmpty() }

// IsQuiet reports whether no operation runs.
func (r *Reconciler) IsQuiet() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.running) == 0
}

// Running returns what the operations that run are for.
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

// IsTakenAway reports whether a volume is being taken away from a pod.
func (r *Reconciler) IsTakenAway(name v1.UniqueVolumeName, pod volume.UniquePodName) bool {
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

// topicOf returns what a change is about: the volumes of a pod, or the volume as a whole.
func topicOf(h podvolume.Key) changes.Topic {
	if h.Pod != "" {
		return changes.Topic{Pod: types.UID(h.Pod)}
	}
	return changes.Topic{Volume: h.Volume}
}
