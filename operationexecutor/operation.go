package operationexecutor

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/keyed"
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
	OpListAttachments          OperationKind = "list_attachments"
	OpVerifyControllerAttached OperationKind = "verify_controller_attached_volume"
	OpExpand                   OperationKind = "expand_volume"
	OpExpandInUse              OperationKind = "volume_fs_resize"
	OpModify                   OperationKind = "modify_volume"
	OpReconstruct              OperationKind = "reconstruct_volume"
)

// Result is how an operation ended.
type Result struct {
	// Class is done, transient, uncertain or final.
	Class Class
	// Err is the error; nil when the class is done. It is a [volume.Error].
	Err error
	// Duration is how long the operation took, from the moment in which it had its key.
	Duration time.Duration
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
	execution execution
	lock      keyed.Lock // says which operation it is, too
	begun     atomic.Bool

	mu     sync.Mutex    // guards what follows
	done   chan struct{} // nil until a caller asks for it
	plugin string        // written by the operation's goroutine only, which reads it without the lock
	steps  []Step
	ended  bool

	// result is written by the goroutine that ends the operation, and does not change after that.
	result Result
}

// Done returns a channel that is closed when the operation has ended. A call of the plugin that was abandoned may
// still run then.
func (o *Operation) Done() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.done == nil {
		o.done = make(chan struct{})
		if o.ended {
			close(o.done)
		}
	}
	return o.done
}

// Err returns nil until Done is closed, and then how the operation ended: nil, or a *volume.Error that wraps the cause
// once and matches its class.
func (o *Operation) Err() error { return o.Result().Err }

// Result returns how the operation ended; the zero value until Done is closed.
func (o *Operation) Result() Result {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ended {
		return Result{}
	}
	return o.result
}

// Info says which operation this is. Started is zero before it is begun; PluginName may be empty until the plugin is
// found.
func (o *Operation) Info() OperationInfo {
	about := &o.lock.Operation
	return OperationInfo{
		Kind: o.kind(), PluginName: o.pluginName(), VolumeName: v1.UniqueVolumeName(about.Key.Volume),
		PodName: volume.UniquePodName(about.Key.Pod), NodeName: types.NodeName(about.Key.Node), Started: o.lock.Started,
	}
}

func (o *Operation) kind() OperationKind { return OperationKind(o.lock.Operation.Kind) }

// Steps returns the steps that have ended so far, in order; a copy.
func (o *Operation) Steps() []Step {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.steps)
}

func (o *Operation) addStep(s Step) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.steps == nil {
		o.steps = make([]Step, 0, manySteps(o.kind()))
	}
	o.steps = append(o.steps, s)
}

// manySteps is how many steps an operation of a kind most often has.
func manySteps(kind OperationKind) int {
	if kind == OpMount {
		return 12
	}
	return 4
}

// pluginName returns the name of the plugin, as far as it is known.
func (o *Operation) pluginName() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.plugin
}

func (o *Operation) setPlugin(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.plugin = name
}

// conclude sets the result. cause is what the operation failed with; no lock is held, for its class may be a plugin's own.
func (o *Operation) conclude(cause error) {
	o.result.Duration = time.Since(o.lock.Started)
	if cause != nil {
		o.result.Class = outcome.ClassOf(cause)
		o.result.Err = &volume.Error{Op: string(o.kind()), Plugin: o.plugin, Volume: v1.UniqueVolumeName(o.lock.Operation.Key.Volume), Err: cause}
	}
}

// close wakes all callers that wait for the end of the operation. A second call does nothing.
func (o *Operation) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return
	}
	o.ended = true
	if o.done != nil {
		close(o.done)
	}
}
