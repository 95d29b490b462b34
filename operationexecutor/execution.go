package operationexecutor

import (
	"context"
	"errors"
	"time"

	"github.com/volumekit/volumekit/volume"
)

// This file is the life of an operation that runs, from its first line to the moment in which its key is free.

// errPanicked is the cause of an operation whose goroutine ended before the operation did, by a panic or a
// runtime.Goexit in a port.
var errPanicked = volume.Uncertain(errors.New("a panic outside of the plugin ended the operation"))

// errAbandoned is what a call returns that was abandoned, when it returns after all. The operation has ended by then: its
// code returns, and its result is dropped.
var errAbandoned = volume.Uncertain(errors.New("the call was abandoned before it returned"))

// code is what an operation does.
type code interface {
	// run does it, from its first check to its last record. It stops at the first error.
	run(ctx context.Context, x *execution) error
}

// resultHandler is code that reports how the operation ended. It returns the operation's error.
type resultHandler interface{ ended(err error) error }

// codeFunc is code that is one function.
type codeFunc func(ctx context.Context, x *execution) error

func (f codeFunc) run(ctx context.Context, x *execution) error { return f(ctx, x) }

// execution is an operation that runs. It belongs to the goroutine that runs it. When a call is abandoned, that goroutine
// is in the call, and another one ends the operation; what the first then still runs must not write here.
type execution struct {
	op       *Operation
	executor *Executor
	worker   Worker // whose goroutine this is
	isAlone  bool   // the goroutine is for this operation only
	code     code

	// failed enters the state of the effect into the actual state when the operation fails, and returns the error with the class
	// that fits that state. The code sets it before each call. If it is nil, the state stays as it was before.
	failed func(ctx context.Context, err error) error
	// release, if the code has set it, is called after the actual state was changed.
	release func()

	// session is the operation's own, or that of the goroutine of its caller.
	session *session
	// calling is the call that runs in the operation's goroutine.
	calling pluginCall
	// unwound is the reason why the operation's code does not continue after a call: errAbandoned, or the error of a call that
	// ends the goroutine.
	unwound error
	// abandonedCalls are the calls that were abandoned, by us or by the plugin.
	abandonedCalls []abandonedCall
	// specs are the specs that plugins got, each a copy for this operation. Most operations have one.
	specs []specCopy
	// parameters are the parameters that the plugin got with the specs.
	parameters map[string]string
}

// execute runs the operation from start to end in this goroutine. When one of its calls is abandoned, the operation ends
// in another goroutine (see abandoned), and this one returns when the call does. A panic of a port ends the operation, and
// goes on to crash the program, for it is not a plugin's.
func (x *execution) execute(ctx context.Context) {
	err := errPanicked
	returned := false
	defer func() {
		switch {
		case x.unwound == errAbandoned: //nolint:errorlint // It is this very error.
		case x.unwound != nil:
			x.end(ctx, x.unwound)
		case returned:
			x.end(ctx, err)
		default:
			x.finish(err)
		}
	}()
	err = x.run(x.observed(ctx))
	returned = true
}

// observed returns the context of the operation: that of the caller, or the one that the observer chooses.
func (x *execution) observed(ctx context.Context) context.Context {
	if o, ok := x.executor.options.Observer.(ContextObserver); ok {
		return o.OperationContext(ctx, x.op.Info())
	}
	return ctx
}

// run does what the operation is for.
func (x *execution) run(ctx context.Context) error {
	x.session.follow(ctx, &x.executor.calls)
	x.calling.abandoned = func(c *pluginCall) { x.abandoned(ctx, c) }
	if o := x.executor.options.Observer; o != nil {
		o.OperationStarted(x.op.Info())
	}
	return x.code.run(ctx, x)
}

// abandoned ends an operation whose goroutine does not return from a call.
func (x *execution) abandoned(ctx context.Context, c *pluginCall) {
	x.worker.Abandoned(x.op)
	if !x.isAlone {
		x.session = &session{} // That of its goroutine is used again when the call returns.
	}
	err := c.lostError(ctx)
	x.stepped(c, err)
	x.end(ctx, err)
}

// end enters the result into the actual state, and reports how the operation ended.
func (x *execution) end(ctx context.Context, cause error) {
	err := errPanicked
	defer func() { x.finish(err) }()
	if cause != nil && x.failed != nil {
		cause = x.failed(ctx, cause)
	}
	if t, ok := x.code.(resultHandler); ok {
		cause = t.ended(cause)
	}
	x.checkSpecs()
	err = cause
}

// finish ends an operation in the order that the package comment promises, also when the observer or KeyFreed panics.
func (x *execution) finish(cause error) {
	if x.isAlone {
		x.session.stop()
	}
	if x.release != nil {
		x.release()
	}
	x.op.conclude(cause)
	defer x.free()
	if o := x.executor.options.Observer; o != nil {
		o.OperationFinished(x.op.Info(), x.op.result)
	}
}

// free counts the result, frees the key, closes Done and removes the operation from the running ones. If calls were abandoned,
// the key stays locked until they return.
func (x *execution) free() {
	e, op := x.executor, x.op
	defer e.leave(op)
	switch err := op.result.Err; {
	case op.lock.Operation.Key.Volume == "": // An operation without a key holds up no other.
	case err == nil:
		e.table.Succeed(&op.lock)
	default:
		e.countFailure(op)
	}
	if left := x.stillRunning(); len(left) > 0 {
		e.keepLocked(op, left)
		return
	}
	e.table.End(&op.lock)
	if e.options.KeyFreed != nil {
		op.close()
		e.options.KeyFreed(op.Info())
	}
}

// port does f, which calls a port, as one step with the deadline of the operation's kind.
func (x *execution) port(ctx context.Context, name string, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, x.timeout())
	defer cancel()
	return x.step(name, func() error { return f(ctx) })
}

// step does f, which is not a call of a plugin, and reports it to the observer.
func (x *execution) step(name string, f func() error) error {
	s := Step{Name: name, Started: time.Now()}
	s.Err = f()
	s.Duration = time.Since(s.Started)
	x.addStep(s)
	return s.Err
}

// stepped reports how a call ended, and notes the abandoned calls that its error names.
func (x *execution) stepped(c *pluginCall, err error) {
	if err != nil {
		x.noteAbandoned(c, err)
	}
	x.addStep(Step{Name: c.name, Started: c.Started, Duration: time.Since(c.Started), Err: err})
}

func (x *execution) addStep(s Step) {
	x.op.addStep(s)
	if o := x.executor.options.Observer; o != nil {
		o.OperationStepped(x.op.Info(), s)
	}
}

// timeout bounds a call of the operation's kind.
func (x *execution) timeout() time.Duration {
	return x.executor.options.timeout(x.op.plugin, x.op.kind())
}

// pluginName returns the name of the plugin, as far as it is known.
func (x *execution) pluginName() string { return x.op.pluginName() }

func (e *Executor) countFailure(op *Operation) {
	var atLeast time.Duration
	if errors.Is(op.result.Err, volume.ErrInfeasible) {
		atLeast = e.options.Backoff.infeasible()
	}
	e.table.Fail(op.lock.Operation, op.result.Err, atLeast)
}

func logKeys(info OperationInfo) []any {
	return []any{"operation", string(info.Kind), "plugin", info.PluginName, "volume", string(info.VolumeName),
		"pod", string(info.PodName), "node", string(info.NodeName)}
}

// NewOperation returns an operation that does run, for generators of other kinds than that of [NewOperationGenerator]. run is treated as one
// call of the plugin that info names: it gets a deadline, a panic in it is an error, and it is abandoned when it does
// not return after its context has ended. info.Kind and info.VolumeName are required.
func NewOperation(info OperationInfo, run func(ctx context.Context) error) *Operation {
	return newOperation(info, codeFunc(func(ctx context.Context, x *execution) error { return x.change(ctx, string(info.Kind), run) }))
}

func newOperation(info OperationInfo, what code) *Operation {
	o := &Operation{plugin: info.PluginName}
	o.lock.Operation = operationOf(&info)
	o.execution.op, o.execution.code = o, what
	return o
}
