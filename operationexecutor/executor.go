package operationexecutor

import (
	"context"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/backoff"
	"github.com/volumekit/volumekit/internal/keyed"
	"github.com/volumekit/volumekit/volume"
)

// Executor begins operations. Make it with [NewOperationExecutor]. See the package comment for what it guarantees.
type Executor struct {
	generator OperationGenerator
	options   ExecutorOptions
	table     *keyed.Table
	workers   workers
	// attachments tells a verification which of its answers are too old.
	attachments attachments

	mu sync.Mutex
	// running holds the operations that have not ended; left those that have, and that left calls behind.
	running, left map[*Operation]struct{}
	// changed is closed and replaced whenever an operation leaves running.
	changed chan struct{}
}

// NewOperationExecutor returns an executor of the operations that generator makes. It starts nothing.
func NewOperationExecutor(generator OperationGenerator, options ExecutorOptions) *Executor {
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	if options.Grace <= 0 {
		options.Grace = DefaultGrace
	}
	if options.WorkersPerPlugin <= 0 {
		options.WorkersPerPlugin = DefaultWorkersPerPlugin
	}
	return &Executor{
		generator: generator,
		options:   options,
		table:     keyed.New(backoff.Policy(options.Backoff)),
		workers:   workers{limit: options.WorkersPerPlugin, slots: map[string]chan struct{}{}},
		running:   map[*Operation]struct{}{},
		left:      map[*Operation]struct{}{},
		changed:   make(chan struct{}),
	}
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

// MountVolume begins to wait for the device of a volume, to stage it where it is not staged, and to set it up for a pod.
func (e *Executor) MountVolume(ctx context.Context, v VolumeToMount, options MountOptions, actualState ActualStateOfWorldMounterUpdater) (*Operation, error) {
	return e.begin(ctx, mountKey(v), e.generator.GenerateMountVolumeFunc(v, options, actualState))
}

// UnmountVolume begins to take a volume away from a pod.
func (e *Executor) UnmountVolume(ctx context.Context, v MountedVolume, actualState ActualStateOfWorldMounterUpdater) (*Operation, error) {
	return e.begin(ctx, Key{Volume: v.VolumeName, Pod: v.PodName}, e.generator.GenerateUnmountVolumeFunc(v, actualState))
}

// UnmountDevice begins to unstage a volume that no pod uses.
func (e *Executor) UnmountDevice(ctx context.Context, v AttachedVolume, actualState ActualStateOfWorldMounterUpdater) (*Operation, error) {
	return e.begin(ctx, Key{Volume: v.VolumeName}, e.generator.GenerateUnmountDeviceFunc(v, actualState))
}

// IsOperationPending reports whether an operation holds a key that meets key, a call that was left behind included.
func (e *Executor) IsOperationPending(key Key) bool { return e.table.Pending(key.keyed()) != nil }

// ResetBackoff forgets the failures of key, of every kind of operation, so that the next one may start at once. An empty
// Pod or Node stands for all of them. Call it when something new is wanted, and when a pod is gone.
func (e *Executor) ResetBackoff(key Key) { e.table.Forget(key.keyed()) }

// Forget forgets the failures of a volume. Call it when the volume is gone.
func (e *Executor) Forget(name v1.UniqueVolumeName) { e.ResetBackoff(Key{Volume: name}) }

// begin claims the key and runs the operation in a goroutine.
func (e *Executor) begin(ctx context.Context, key Key, op *Operation) (*Operation, error) {
	info := op.Info()
	subject := keyed.Subject{Key: subjectOf(info), Kind: string(info.Kind)}
	claim, refusal := e.table.Begin(key.keyed(), subject)
	if refusal != nil {
		return nil, refused(info, refusal)
	}
	op.begin(claim.Started)
	e.attachments.begin(info)
	e.mu.Lock()
	e.running[op] = struct{}{}
	e.mu.Unlock()
	go e.execute(ctx, op, claim)
	return op, nil
}

func refused(info OperationInfo, r *keyed.Refusal) error {
	if r.Running != nil {
		return &volume.PendingError{
			Op: string(info.Kind), Running: r.Running.Subject.Kind, Volume: info.VolumeName, Since: r.Running.Started,
		}
	}
	return &volume.BackoffError{
		Op: string(info.Kind), Volume: info.VolumeName,
		Attempts: r.Failure.Attempts, Until: r.Failure.Until, Err: r.Failure.Err,
	}
}

// execute is the goroutine of an operation.
func (e *Executor) execute(ctx context.Context, op *Operation, claim *keyed.Claim) {
	x := &execution{op: op, executor: e}
	err := errNotEnded
	defer func() { e.finish(x, claim, err) }()
	if e.options.Observer != nil {
		e.options.Observer.OperationStarted(op.Info())
	}
	err = op.run(ctx, x)
}

// finish ends an operation in the order that the package comment promises. It runs also when a port panicked or ended
// the goroutine: a panic goes on to crash the program, for it is not a plugin's.
func (e *Executor) finish(x *execution, claim *keyed.Claim, cause error) {
	result := x.op.conclude(cause)
	defer e.release(x, claim, result)
	if e.options.Observer != nil {
		e.options.Observer.OperationFinished(x.op.Info(), result)
	}
}

// release counts the result, frees the key or leaves it to those who wait for the calls that were left behind, and
// closes Done.
func (e *Executor) release(x *execution, claim *keyed.Claim, result Result) {
	defer e.retire(x.op)
	switch {
	case claim.Key.Volume == "": // Without a key there is nobody to wait.
	case result.Err == nil:
		e.table.Succeed(claim)
	default:
		e.table.Fail(claim, result.Err)
	}
	if lost := x.stillRunning(); len(lost) > 0 {
		e.leave(x.op)
		close(x.op.done)
		e.options.Logger.Warn("a call of a plugin was left behind; its key stays taken", logKeys(x.op.Info())...)
		go e.awaitLost(x.op, claim, lost)
	} else {
		e.table.End(claim)
		close(x.op.done)
		e.keyFreed(x.op.Info())
	}
}

// leave puts an operation among those of which a call still runs.
func (e *Executor) leave(op *Operation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.left[op] = struct{}{}
}

// retire takes an operation from those that run, and wakes those who wait for that.
func (e *Executor) retire(op *Operation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.running, op)
	close(e.changed)
	e.changed = make(chan struct{})
}

// awaitLost frees the key when the last call that was left behind has returned. It ends with that call.
func (e *Executor) awaitLost(op *Operation, claim *keyed.Claim, lost []<-chan struct{}) {
	for _, done := range lost {
		<-done
	}
	e.table.End(claim)
	e.mu.Lock()
	delete(e.left, op)
	e.mu.Unlock()
	info := op.Info()
	e.options.Logger.Info("a call that was left behind has returned", append(logKeys(info), "after", time.Since(info.Started))...)
	e.keyFreed(info)
}

func (e *Executor) keyFreed(info OperationInfo) {
	if e.options.KeyFreed != nil {
		e.options.KeyFreed(info)
	}
}

func logKeys(info OperationInfo) []any {
	return []any{"operation", string(info.Kind), "plugin", info.PluginName, "volume", string(info.VolumeName),
		"pod", string(info.PodName), "node", string(info.NodeName)}
}
