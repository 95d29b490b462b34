package operationexecutor

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/keyed"
	"github.com/volumekit/volumekit/volume"
)

// Executor begins operations. Make it with [NewOperationExecutor]. See the package comment for what it guarantees.
type Executor struct {
	generator OperationGenerator
	options   ExecutorOptions
	table     *keyed.Table
	// attachments tells a verification which of its answers are too old.
	attachments attachments
	// hands are the goroutines of operations.
	hands hands
	// epoch is when the executor was made; what is due is counted from it.
	epoch time.Time

	mu sync.Mutex
	// running is the number of operations that have not ended; bounds has them, by the context that bounds them.
	running   int
	bounds    map[<-chan struct{}]*bound
	lastBound *bound
	// quiet is closed when the last operation has ended; nil while nobody waits for that.
	quiet      chan struct{}
	isShutDown bool
	// left holds the operations that have ended and of which a call still runs, with what awaits those calls.
	left map[*Operation][]leftCall
	// awaited counts those whose key is to be freed when their calls have returned; returned is closed when that has been
	// done for all; nil: nobody has asked.
	awaited  int
	returned chan struct{}
	// plugins holds what is known of the calls of each plugin; there are as many as plugins.
	plugins map[string]*pluginCalls
	// queues holds the calls that are under way, by when they are due, hung those that were left behind.
	queues map[time.Duration]*queue
	hung   map[*flight]struct{}
}

// NewOperationExecutor returns an executor of the operations that generator makes. It starts nothing.
func NewOperationExecutor(generator OperationGenerator, options ExecutorOptions) *Executor {
	return &Executor{
		generator: generator,
		options:   options.withDefaults(),
		epoch:     time.Now(),
		table:     keyed.New(options.Backoff.policy()),
		bounds:    map[<-chan struct{}]*bound{},
		left:      map[*Operation][]leftCall{},
		plugins:   map[string]*pluginCalls{},
		queues:    map[time.Duration]*queue{},
		hung:      map[*flight]struct{}{},
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

// MountVolume begins to wait for the device of a volume, to stage it where it is not staged, and to set it up for a pod; or
// to map it for the pod, when its PersistentVolume has volumeMode Block.
func (e *Executor) MountVolume(ctx context.Context, v VolumeToMount, options MountOptions, actualState ActualStateOfWorldMounterUpdater) (*Operation, error) {
	if isBlock(v.VolumeSpec) {
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
	if isBlock(v.VolumeSpec) || v.VolumeSpec == nil && e.isMapPath(v.PluginName, v.DeviceMountPath) {
		return e.begin(ctx, Key{Volume: v.VolumeName}, e.generator.GenerateUnmapDeviceFunc(v, actualState))
	}
	return e.begin(ctx, Key{Volume: v.VolumeName}, e.generator.GenerateUnmountDeviceFunc(v, actualState))
}

// isMapped reports whether the pod has the volume as a device.
func (e *Executor) isMapped(v MountedVolume) bool {
	if v.VolumeSpec != nil {
		return isBlock(v.VolumeSpec)
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

// IsOperationPending reports whether an operation holds a key that meets key, a call that was left behind included.
func (e *Executor) IsOperationPending(key Key) bool { return e.table.Pending(key.keyed()) != nil }

// ResetBackoff forgets the failures of key, of every kind of operation, so that the next one may start at once. An empty
// Pod or Node stands for all of them. Call it when something new is wanted, and when a pod is gone.
func (e *Executor) ResetBackoff(key Key) { e.table.Forget(key.keyed()) }

// Forget forgets the failures of a volume. Call it when the volume is gone.
func (e *Executor) Forget(name v1.UniqueVolumeName) { e.ResetBackoff(Key{Volume: name}) }

// begin claims the key and runs the operation in a goroutine.
func (e *Executor) begin(ctx context.Context, key Key, op *Operation) (*Operation, error) {
	if !op.begun.CompareAndSwap(false, true) {
		return nil, fmt.Errorf("an operation is begun once, and this one was begun before: have the generator make another: %w", volume.ErrInvalid)
	}
	if op.x != nil {
		op.x.executor = e
	}
	claim := &op.claim
	claim.AllPods, claim.AllNodes = key.Pod == "", key.Node == ""
	if refusal := e.table.Begin(claim); refusal != nil {
		op.begun.Store(false)
		return nil, refused(claim, refusal)
	}
	if !e.enter(ctx, op) {
		e.table.End(claim)
		return nil, fmt.Errorf("%s of volume %q did not start: %w", claim.Subject.Kind, claim.Subject.Key.Volume, ErrShutDown)
	}
	e.attachments.begin(claim)
	e.hands.do(job{ctx, op}) //nolint:contextcheck // The job has it.
	return op, nil
}

func refused(claim *keyed.Claim, r *keyed.Refusal) error {
	op, name := claim.Subject.Kind, v1.UniqueVolumeName(claim.Subject.Key.Volume)
	if r.Running != nil {
		return &volume.PendingError{Op: op, Running: r.Running.Subject.Kind, Volume: name, Since: r.Running.Started}
	}
	return &volume.BackoffError{
		Op: op, Volume: name, Attempts: r.Failure.Attempts, Until: r.Failure.Until, Err: r.Failure.Err,
	}
}
