package operationexecutor

import (
	"context"
	"errors"
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
	// alone does it when it is one call of a plugin; else it is nil. The size of an operation is most of what one that is
	// one call costs: what few need is elsewhere.
	alone func(ctx context.Context) error
	// x has the steps of an operation that has several; one that is one call has it when it left something behind.
	x *execution

	claim  keyed.Claim // says which operation it is, too
	single flight      // that of alone

	// What follows is guarded by the executor's lock.

	bound         *bound
	before, after *Operation // among those of the same bound

	begun  atomic.Bool
	class  Class
	ended  bool
	mu     sync.Mutex    // guards what follows, and what a flight says that it guards
	plugin string        // written by the operation's goroutine only, which reads it without the lock
	done   chan struct{} // made when it is asked for

	// These, with the class, are how it ended: written by the operation's goroutine only, and by nobody once it has ended.

	err      error
	duration time.Duration
}

// NewOperation returns an operation that does run, for generators of other kinds than [Generator]. run is treated as one
// call of the plugin that info names: it gets a deadline, a panic in it is an error, and it is left behind when it does
// not return after its context has ended. info.Kind and info.VolumeName are required.
func NewOperation(info OperationInfo, run func(ctx context.Context) error) *Operation {
	o := &Operation{alone: run, plugin: info.PluginName}
	o.claim.Subject = subjectOf(&info)
	return o
}

func newOperation(info OperationInfo, run func(ctx context.Context, x *execution) error) *Operation {
	o := &struct {
		Operation
		execution
	}{}
	o.x, o.plugin, o.claim.Subject = &o.execution, info.PluginName, subjectOf(&info)
	o.execution.op, o.execution.run = &o.Operation, run
	return &o.Operation
}

// closed is the channel of all operations that had ended before anybody asked for it. Nothing is ever sent on it.
var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Done returns a channel that is closed when the operation has ended. A call of the plugin that was left behind may
// still run then.
func (o *Operation) Done() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.done != nil:
		return o.done
	case o.ended:
		return closed
	}
	o.done = make(chan struct{})
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
	return o.outcome()
}

// outcome is the result of an operation that has ended, or of one that asks in its own goroutine.
func (o *Operation) outcome() Result {
	return Result{Class: o.class, Err: o.err, Duration: o.duration}
}

// Info says which operation this is. Started is zero before it is begun; PluginName may be empty until the plugin is
// found.
func (o *Operation) Info() OperationInfo {
	var info OperationInfo
	o.describe(&info)
	return info
}

// describe fills info in, on a small stack: see executeAlone.
//
//go:noinline
func (o *Operation) describe(info *OperationInfo) {
	subject := &o.claim.Subject
	info.Kind, info.VolumeName = OperationKind(subject.Kind), v1.UniqueVolumeName(subject.Key.Volume)
	info.PodName, info.NodeName = volume.UniquePodName(subject.Key.Pod), types.NodeName(subject.Key.Node)
	info.Started = o.claim.Started
	info.PluginName = o.pluginName()
}

// executor is the one that began the operation.
func (o *Operation) executor() *Executor { return o.bound.executor }

func (o *Operation) kind() OperationKind { return OperationKind(o.claim.Subject.Kind) }

// Steps returns the steps that have ended so far, in order; a copy.
func (o *Operation) Steps() []Step {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.alone != nil && o.ended {
		return []Step{o.onlyStep()}
	}
	if o.alone != nil {
		return nil
	}
	return slices.Clone(o.x.steps)
}

// onlyStep is the step of an operation that is one call and has ended: it is told by the result.
func (o *Operation) onlyStep() Step {
	s := Step{Name: o.claim.Subject.Kind, Started: o.single.startedAt(), Err: o.err}
	s.Duration = o.duration - s.Started.Sub(o.claim.Started)
	var failed *volume.Error
	if errors.As(s.Err, &failed) {
		s.Err = failed.Err
	}
	return s
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

// manySteps is how many steps an operation of a kind most often has.
func manySteps(kind OperationKind) int {
	if kind == OpMount {
		return 12
	}
	return 4
}

func (o *Operation) addStep(s Step) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.x.steps = append(o.x.steps, s)
}

// addSteps adds steps, which are not appended to by anybody else any more.
func (o *Operation) addSteps(steps []Step) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.x.steps == nil {
		o.x.steps = steps
		return
	}
	o.x.steps = append(o.x.steps, steps...)
}

// conclude sets the result. cause is what the operation failed with; no lock is held, for its class may be a plugin's own.
func (o *Operation) conclude(cause error) {
	if cause != nil {
		o.fail(cause)
	}
	o.duration = time.Since(o.claim.Started)
}

//go:noinline
func (o *Operation) fail(cause error) {
	o.class = outcome.ClassOf(cause)
	o.err = &volume.Error{Op: string(o.kind()), Plugin: o.plugin, Volume: v1.UniqueVolumeName(o.claim.Subject.Key.Volume), Err: cause}
}

// close tells everybody that the operation has ended. Twice is as good as once.
func (o *Operation) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ended && o.done != nil {
		close(o.done)
	}
	o.ended = true
}
