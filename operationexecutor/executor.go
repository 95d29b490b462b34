package operationexecutor

import (
	"context"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/keyed"
	"github.com/volumekit/volumekit/internal/watchdog"
	"github.com/volumekit/volumekit/volume"
)

// Executor begins operations. Make it with [NewOperationExecutor]. See the package comment for what it guarantees.
type Executor struct {
	*engine
	// worker is the goroutine of the caller, where operations run in that; nil: each runs in one of its own.
	worker  Worker
	session *session // of that goroutine
}

// Worker learns of the operations that run in its goroutine: see [Executor.Synchronous].
type Worker interface {
	// Began is called in that goroutine when an operation has its key, and right before it runs.
	Began(op *Operation)
	// Slow is called when a call of the operation has taken longer than ten seconds and no longer counts against
	// ExecutorOptions.WorkersPerPlugin. It must return at once.
	Slow(op *Operation)
	// Abandoned is called when a call was abandoned: the operation ends in another goroutine, and the worker's returns with
	// the call, or never.
	Abandoned(op *Operation)
}

// noWorker ignores all calls.
type noWorker struct{}

func (noWorker) Began(*Operation)     {}
func (noWorker) Slow(*Operation)      {}
func (noWorker) Abandoned(*Operation) {}

// engine is the state that executors share if one was made from the other (see Synchronous).
type engine struct {
	generator OperationGenerator
	options   ExecutorOptions
	table     *keyed.Table
	// attachments shows a verification which of its answers are outdated.
	attachments attachments
	// calls watches the calls of plugins.
	calls watchdog.Watchdog

	mu sync.Mutex
	// running are the operations that have not ended.
	running map[*Operation]struct{}
	// idle closes when the last operation has ended. It is nil unless a caller waits for that.
	idle       chan struct{}
	isShutDown bool
	// abandoned holds the operations that have ended although a call still runs, with those calls.
	abandoned map[*Operation][]abandonedCall
	// awaited counts the operations whose keys are freed when their abandoned calls return. returned is closed when it is zero;
	// it is nil unless a caller waits for that.
	awaited  int
	returned chan struct{}
	// workers holds the workers of each plugin.
	workers map[string]*workers
}

// NewOperationExecutor returns an executor of the operations that generator makes. It starts nothing.
func NewOperationExecutor(generator OperationGenerator, options ExecutorOptions) *Executor {
	return &Executor{
		engine: &engine{
			generator: generator,
			options:   options.withDefaults(),
			table:     keyed.New(options.Backoff.policy()),
			running:   map[*Operation]struct{}{},
			abandoned: map[*Operation][]abandonedCall{},
			workers:   map[string]*workers{},
		},
	}
}

// Synchronous returns an executor that shares everything with e, and whose operations run in the goroutine of their caller:
// each method that begins one returns when it has ended. Only when a call of a plugin is abandoned does the method return
// later than that, with the call: watch Done, or ExecutorOptions.CallsAbandoned, in another goroutine. A call that ends its
// goroutine (runtime.Goexit) ends that of the caller, when the operation has ended. w, if it is not nil, is told how they go.
//
// The executor is for one goroutine. Its calls share contexts, which end a little after a call has returned, and with the context
// of the operation at the latest: cancel that when no more operations are begun.
func (e *Executor) Synchronous(w Worker) *Executor {
	if w == nil {
		w = noWorker{}
	}
	return &Executor{engine: e.engine, worker: w, session: &session{}}
}

// AttachVolume begins to attach a volume to a node. Every method that begins an operation returns at once: an error says
// that it did not start, and is a [*volume.PendingError] or a [*volume.BackoffError]; the operation tells the rest. ctx
// bounds the operation, not the call.
func (e *Executor) AttachVolume(ctx context.Context, v VolumeToAttach, actualState ActualStateOfWorldAttacherUpdater) (*Operation, error) {
	return e.begin(ctx, attachKey(v), e.generator.GenerateAttachVolumeFunc(v, actualState))
}

// DetachVolume begins to detach a volume from a node.
func (e *Executor) DetachVolume(ctx context.Context, v AttachedVolume, options DetachOptions, actualState ActualStateOfWorldAttacherUpdater) (*Operation, error) {
	return e.begin(ctx, detachKey(v), e.generator.GenerateDetachVolumeFunc(v, options, actualState))
}

// MountVolume begins to wait for the device of a volume, to stage it where it is not staged, and to set it up for a pod; or
// to map it for the pod, when its PersistentVolume has volumeMode Block.
func (e *Executor) MountVolume(ctx context.Context, v VolumeToMount, options MountOptions, actualState ActualStateOfWorldMounterUpdater) (*Operation, error) {
	if volume.IsBlock(v.VolumeSpec) {
		return e.begin(ctx, Key{Volume: v.VolumeName}, e.generator.GenerateMapVolumeFunc(v, options, actualState))
	}
	return e.begin(ctx, mountKey(v), e.generator.GenerateMountVolumeFunc(v, options, actualState))
}

// UnmountVolume begins to take a volume away from a pod: to tear it down, or to unmap it. One whose spec is not known is
// unmapped when it has a mapper, or when its paths are those of a block volume.
func (e *Executor) UnmountVolume(ctx context.Context, v MountedVolume, actualState ActualStateOfWorldMounterUpdater) (*Operation, error) {
	if e.isMapped(v) {
		return e.begin(ctx, Key{Volume: v.VolumeName, Pod: v.PodName}, e.generator.GenerateUnmapVolumeFunc(v, actualState))
	}
	return e.begin(ctx, Key{Volume: v.VolumeName, Pod: v.PodName}, e.generator.GenerateUnmountVolumeFunc(v, actualState))
}

// UnmountDevice begins to unstage a volume that no pod uses, or to undo what was prepared to map it.
func (e *Executor) UnmountDevice(ctx context.Context, v AttachedVolume, actualState ActualStateOfWorldMounterUpdater) (*Operation, error) {
	if volume.IsBlock(v.VolumeSpec) || v.VolumeSpec == nil && e.isMapPath(v.PluginName, v.DeviceMountPath) {
		return e.begin(ctx, Key{Volume: v.VolumeName}, e.generator.GenerateUnmapDeviceFunc(v, actualState))
	}
	return e.begin(ctx, Key{Volume: v.VolumeName}, e.generator.GenerateUnmountDeviceFunc(v, actualState))
}

// isMapped reports whether the pod has the volume as a device.
func (e *Executor) isMapped(v MountedVolume) bool {
	if v.VolumeSpec != nil {
		return volume.IsBlock(v.VolumeSpec)
	}
	return v.BlockVolumeMapper != nil || e.isMapPath(v.PluginName, v.DeviceMountPath) || e.isLink(v)
}

// isMapPath reports whether path is the global map path of a volume of the plugin.
func (e *Executor) isMapPath(pluginName, path string) bool {
	return path != "" && isBeneath(path, e.generator.GetVolumePluginMgr().Host().GetVolumeDevicePluginDir(pluginName))
}

// isLink reports whether what the pod has is a link to a device.
func (e *Executor) isLink(v MountedVolume) bool {
	return v.MountPath != "" && isBeneath(v.MountPath, e.generator.GetVolumePluginMgr().Host().GetPodVolumeDeviceDir(v.PodUID, v.PluginName))
}

// IsOperationPending reports whether an operation holds a key that meets key, a call that was abandoned included.
func (e *Executor) IsOperationPending(key Key) bool { return e.table.Pending(key.keyed()) != nil }

// ResetBackoff forgets the failures of key, of every kind of operation, so the next one may start at once. An empty Pod or
// Node stands for all of them. Call it when something new is wanted, and when a pod is gone.
func (e *Executor) ResetBackoff(key Key) { e.table.Forget(key.keyed()) }

// Forget forgets the failures of a volume. Call it when the volume is gone.
func (e *Executor) Forget(name v1.UniqueVolumeName) { e.ResetBackoff(Key{Volume: name}) }

// begin takes the key and runs the operation.
func (e *Executor) begin(ctx context.Context, key Key, op *Operation) (*Operation, error) {
	if !op.begun.CompareAndSwap(false, true) {
		return nil, fmt.Errorf("an operation is begun once, and this one was begun before: have the generator make another: %w", volume.ErrInvalid)
	}
	op.execution.executor = e
	lock := &op.lock
	lock.AllPods, lock.AllNodes = key.Pod == "", key.Node == ""
	if refusal := e.table.Begin(lock); refusal != nil {
		op.begun.Store(false)
		return nil, refused(lock, refusal)
	}
	if !e.enter(op) {
		e.table.End(lock)
		return nil, fmt.Errorf("%s of volume %q did not start: %w", lock.Operation.Kind, lock.Operation.Key.Volume, ErrShutDown)
	}
	e.attachments.begin(lock)
	if e.worker == nil {
		op.execution.worker, op.execution.session, op.execution.isAlone = noWorker{}, &session{}, true
		go op.execution.execute(ctx)
		return op, nil
	}
	op.execution.worker, op.execution.session = e.worker, e.session
	e.worker.Began(op)
	op.execution.execute(ctx)
	return op, nil
}

// enter puts an operation among those that run. It returns false after a shutdown.
func (e *Executor) enter(op *Operation) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.isShutDown {
		return false
	}
	e.running[op] = struct{}{}
	return true
}

// leave takes an operation from those that run, and wakes those who wait for it, and for the last one.
func (e *Executor) leave(op *Operation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.running, op)
	op.close()
	if len(e.running) == 0 && e.idle != nil {
		close(e.idle)
		e.idle = nil
	}
}

func refused(lock *keyed.Lock, r *keyed.Refusal) error {
	op, name := lock.Operation.Kind, v1.UniqueVolumeName(lock.Operation.Key.Volume)
	if r.Running != nil {
		return &volume.PendingError{Op: op, Running: r.Running.Operation.Kind, Volume: name, Since: r.Running.Started}
	}
	return &volume.BackoffError{
		Op: op, Volume: name, Attempts: r.Failure.Attempts, Until: r.Failure.Until, Err: r.Failure.Err,
	}
}
