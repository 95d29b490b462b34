package operationexecutor

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/volume"
)

// OperationKind is what an operation does; its text is the operation's name in metrics, as kubelet 1.36 has it.
type OperationKind string

// The kinds of operation.
const (
	OpAttach                   OperationKind = "volume_attach"
	OpDetach                   OperationKind = "volume_detach"
	OpMount                    OperationKind = "volume_mount"
	OpUnmount                  OperationKind = "volume_unmount"
	OpUnmountDevice            OperationKind = "unmount_device"
	OpMap                      OperationKind = "map_volume"
	OpUnmap                    OperationKind = "unmap_volume"
	OpUnmapDevice              OperationKind = "unmap_device"
	OpVerifyAttached           OperationKind = "verify_volumes_are_attached_per_node"
	OpBulkVerifyAttached       OperationKind = "verify_volumes_are_attached"
	OpVerifyControllerAttached OperationKind = "verify_controller_attached_volume"
	OpExpand                   OperationKind = "expand_volume"
	OpExpandInUse              OperationKind = "volume_fs_resize"
	OpReconstruct              OperationKind = "reconstruct_volume"
)

// Result is how an operation ended.
type Result struct {
	// Class is done, transient, uncertain or final.
	Class Class
	// Err is the error; nil when the class is done. It is a [volume.Error].
	Err error
}

// Class is how an operation ended.
type Class = outcome.Class

// The classes. See volume.Mounter for what each says about the world.
const (
	Done      = outcome.Done
	Transient = outcome.Transient
	Uncertain = outcome.Uncertain
	Final     = outcome.Final
)

// Operation is one operation. A generator makes it, an executor begins it and returns it as the handle of what runs.
// It is begun at most once.
type Operation struct {
	run  func(ctx context.Context, x *execution) error
	done chan struct{}

	mu     sync.Mutex
	info   OperationInfo
	steps  []Step
	result Result
}

// NewOperation returns an operation that does run, for generators of other kinds than [Generator]. run is treated as one
// call of the plugin that info names: it gets a deadline, a panic in it is an error, and it is left behind when it does
// not return after its context has ended. info.Kind and info.VolumeName are required.
func NewOperation(info OperationInfo, run func(ctx context.Context) error) *Operation {
	return newOperation(info, func(ctx context.Context, x *execution) error {
		return x.change(ctx, string(info.Kind), run)
	})
}

func newOperation(info OperationInfo, run func(ctx context.Context, x *execution) error) *Operation {
	return &Operation{info: info, run: run, done: make(chan struct{})}
}

// Done returns a channel that is closed when the operation has ended. A call of the plugin that was left behind may
// still run then.
func (o *Operation) Done() <-chan struct{} { return o.done }

// Err returns nil until Done is closed, and then how the operation ended: nil, or a *volume.Error that wraps the cause
// once and matches its class.
func (o *Operation) Err() error { return o.Result().Err }

// Result returns how the operation ended; the zero value until Done is closed.
func (o *Operation) Result() Result {
	select {
	case <-o.done:
	default:
		return Result{}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.result
}

// Info says which operation this is. Started is zero before it is begun; PluginName may be empty until the plugin is
// found.
func (o *Operation) Info() OperationInfo {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.info
}

// Steps returns the steps that have ended so far, in order; a copy.
func (o *Operation) Steps() []Step {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.steps)
}

func (o *Operation) begin(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.info.Started = now
}

func (o *Operation) setPlugin(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.info.PluginName = name
}

func (o *Operation) addStep(s Step) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.steps = append(o.steps, s)
}

// conclude sets the result and returns it. cause is what the operation failed with; its class is asked outside of the
// lock, for it may be a plugin's own.
func (o *Operation) conclude(cause error) Result {
	var result Result
	if cause != nil {
		info := o.Info()
		result = Result{
			Class: outcome.ClassOf(cause),
			Err:   &volume.Error{Op: string(info.Kind), Plugin: info.PluginName, Volume: info.VolumeName, Err: cause},
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.result = result
	return result
}
