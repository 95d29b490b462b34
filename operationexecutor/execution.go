package operationexecutor

import (
	"context"
	"errors"
	"time"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/volume"
)

// This file is the life of an operation that runs, from its goroutine's first line to the moment in which its key is free.

// errNotEnded is the cause of an operation whose goroutine ended before the operation did, by a panic or a
// runtime.Goexit in a port.
var errNotEnded = volume.Uncertain(errors.New("the operation was broken off by a panic outside of the plugin"))

// execution is an operation of several steps that runs. It belongs to the operation's goroutine.
type execution struct {
	op       *Operation
	executor *Executor
	// run is the operation's code. It returns how the operation ended, or errCalls when a call comes next.
	run func(ctx context.Context, x *execution) error
	// conclude, if the code has set it, gets how the code ended, and returns how the operation did. release is called after
	// the code, whatever became of it. Both are called once.
	conclude func(err error) error
	release  func()
	// leg is the call that comes next.
	leg    leg
	flight *flight // the call that is under way; the executor's lock guards it
	// ended tells how each call beside ended, one after the other; made for the first.
	ended chan bool
	// left are the calls that were left behind, by us or by the plugin.
	left []leftCall
	// loan is the spec that plugins got, loans are further ones by the original; most operations have one.
	loan  loan
	loans map[*volume.Spec]loan
	// steps are those that have ended; the operation's own lock guards them.
	steps []Step
}

// endings returns the channel that tells how a call beside ended.
func (x *execution) endings() chan bool {
	if x.ended == nil {
		x.ended = make(chan bool, 1)
	}
	return x.ended
}

// leftCall is a call that was left behind.
type leftCall struct {
	name    string
	started time.Time
	done    <-chan struct{} // closed when it has really ended
	flight  *flight         // nil when the plugin left it behind
}

// execute does an operation of several steps.
func (o *Operation) execute(ctx context.Context) {
	o.proceed(ctx, func(ctx context.Context) error {
		o.tellStarted()
		return o.x.run(ctx, o.x)
	})
}

// proceed does the operation from some point on: its code up to the next call, the call in the same goroutine, the code
// after it, and so on to the end; but when a call is left behind, or ends the goroutine, another one proceeds from there. When
// a port panics or ends the goroutine, the operation ends as well; the panic goes on to crash the program, for it is not a
// plugin's.
func (o *Operation) proceed(ctx context.Context, code func(ctx context.Context) error) {
	x, err := o.x, errNotEnded
	defer func() { o.stop(err) }()
	err = code(ctx)
	for isCalls(err) {
		l := x.leg
		x.leg = nil
		err = errGoesOn // elsewhere, when the call does not come back
		if !l.fly(ctx) {
			return
		}
		err = errNotEnded
		err = l.goOn(ctx)
	}
	if x.conclude != nil {
		cause := err
		err = errNotEnded
		err = x.conclude(cause)
	}
	x.settleLoans()
}

// stop ends the operation, unless it goes on in another goroutine.
func (o *Operation) stop(err error) {
	if err == errGoesOn { //nolint:errorlint // It is this very error.
		return
	}
	if o.x.release != nil {
		o.x.release()
	}
	o.finish(err)
}

// executeAlone is the goroutine of an operation that is one call: the call is made in it, with nobody waiting beside. It
// and what it calls keep their frames small, because the stack of a goroutine begins small and is copied when it grows,
// which takes longer than all the rest.
func (o *Operation) executeAlone() {
	f := &o.single
	err := errNotEnded
	defer o.endAlone(&err)
	o.tellStarted()
	if !f.tookOff() {
		if err = f.takeOff(f.parent); err != nil {
			return
		}
	}
	o.flyAlone(f, &err)
}

// endAlone ends an operation that is one call, unless that was given up. It is deferred, since a call may end the
// goroutine.
func (o *Operation) endAlone(err *error) {
	f := &o.single
	if !f.tookOff() || o.executor().land(f) {
		o.finishAlone(*err)
	}
}

// flyAlone makes the call and keeps its error, also when the call ends the goroutine.
func (o *Operation) flyAlone(f *flight, result *error) {
	*result = errNotEnded
	defer o.keepPanic(f, result)
	err := f.fly(runs(o.alone))
	if err != nil {
		err = f.call().sane(o.plugin, err)
	}
	*result = err
}

// keepPanic keeps the panic of a call that has not returned.
func (o *Operation) keepPanic(f *flight, result *error) {
	if *result == errNotEnded { //nolint:errorlint // It is this very error.
		*result = f.call().panicked(o.plugin, recover())
	}
}

// loseAlone ends an operation whose one call was given up. It is a goroutine.
func (o *Operation) loseAlone(f *flight) { o.finishAlone(f.lostError()) }

// finishAlone ends an operation that is one call, which has returned or was given up.
func (o *Operation) finishAlone(err error) {
	if err != nil {
		o.noteLeft(&o.single, err)
	}
	if observer := o.executor().options.Observer; observer != nil {
		o.single.tellFlown(observer, err)
	}
	o.finish(err)
}

// flown notes how a call went that has ended.
func (x *execution) flown(f *flight, err error) {
	if err != nil {
		x.op.noteLeft(f, err)
	}
	x.op.addStep(f.step(err))
	if o := x.executor.options.Observer; o != nil {
		f.tellFlown(o, err)
	}
}

// step is the call as a step that has ended just now.
func (f *flight) step(err error) Step {
	s := Step{Name: f.call().name, Started: f.startedAt(), Err: err}
	if f.tookOff() {
		s.Duration = time.Since(s.Started)
	} else {
		s.Started = time.Now()
	}
	return s
}

// noteLeft notes the calls that err says were left behind.
func (o *Operation) noteLeft(f *flight, err error) {
	for _, done := range outcome.Running(err) {
		left := leftCall{name: f.call().name, started: f.startedAt(), done: done}
		if f.seldom != nil && f.seldom.returned == done {
			left.flight = f
		}
		if o.x == nil {
			o.x = &execution{op: o, executor: o.executor()}
		}
		o.x.left = append(o.x.left, left)
	}
}

func (o *Operation) tellStarted() {
	if observer := o.executor().options.Observer; observer != nil {
		tellStarted(observer, o)
	}
}

// port does f, which calls a port, as one step with the deadline of the operation's kind.
func (x *execution) port(ctx context.Context, name string, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, x.timeout())
	defer cancel()
	return x.step(name, func() error { return f(ctx) })
}

// step does f, which is not a call of a plugin, and tells of it.
func (x *execution) step(name string, f func() error) error {
	s := Step{Name: name, Started: time.Now()}
	s.Err = f()
	s.Duration = time.Since(s.Started)
	x.op.addStep(s)
	if o := x.executor.options.Observer; o != nil {
		o.OperationStepped(x.op.Info(), s)
	}
	return s.Err
}

// tellStarted, tellFlown and tellFinished are functions of their own because they copy what they tell.
//
//go:noinline
func tellStarted(o Observer, op *Operation) { o.OperationStarted(op.Info()) }

//go:noinline
func (f *flight) tellFlown(o Observer, err error) { o.OperationStepped(f.op.Info(), f.step(err)) }

//go:noinline
func tellFinished(o Observer, op *Operation) { o.OperationFinished(op.Info(), op.outcome()) }

// finish ends an operation in the order that the package comment promises, also when the observer or KeyFreed panics.
func (o *Operation) finish(cause error) {
	o.conclude(cause)
	defer o.free()
	if observer := o.executor().options.Observer; observer != nil {
		tellFinished(observer, o)
	}
}

// free counts the result, frees the key or leaves it to those who wait for the calls that were left behind, closes Done and
// takes the operation from those that run.
func (o *Operation) free() {
	e := o.executor()
	defer e.leave(o)
	switch err := o.err; {
	case o.claim.Subject.Key.Volume == "": // Without a key there is nobody to wait.
	case err == nil:
		e.table.Succeed(&o.claim)
	default:
		e.countFailure(o)
	}
	if o.x != nil && e.leaveBehind(o.x) {
		return
	}
	e.table.End(&o.claim)
	if e.options.KeyFreed != nil {
		o.close()
		e.tellFreed(o)
	}
}

// leaveBehind leaves the key to those who wait for the calls that were left behind. It returns false when all have
// returned.
//
//go:noinline
func (e *Executor) leaveBehind(x *execution) bool {
	op, left := x.op, x.stillRunning()
	if len(left) == 0 {
		return false
	}
	e.mu.Lock()
	e.left[op] = left
	e.awaited++
	e.mu.Unlock()
	op.close()
	e.options.Logger.Warn("a call of a plugin was left behind; its key stays taken", logKeys(op.Info())...)
	if e.options.CallsLeft != nil {
		e.options.CallsLeft(op.Info())
	}
	go e.awaitLeft(op, left)
	return true
}

// stillRunning returns the calls that were left behind and have not ended.
func (x *execution) stillRunning() []leftCall {
	var running []leftCall
	for _, call := range x.left {
		if !isClosed(call.done) {
			running = append(running, call)
		}
	}
	return running
}

// awaitLeft frees the key when the last call that was left behind has returned. It ends with that call.
func (e *Executor) awaitLeft(op *Operation, calls []leftCall) {
	defer e.noteReturned()
	for _, call := range calls {
		<-call.done
	}
	e.table.End(&op.claim)
	e.mu.Lock()
	delete(e.left, op)
	e.mu.Unlock()
	info := op.Info()
	e.options.Logger.Info("a call that was left behind has returned", append(logKeys(info), "after", time.Since(info.Started))...)
	e.keyFreed(info)
}

//go:noinline
func (e *Executor) tellFreed(op *Operation) {
	var info OperationInfo
	op.describe(&info)
	e.options.KeyFreed(info)
}

//go:noinline
func (e *Executor) countFailure(op *Operation) {
	var atLeast time.Duration
	if errors.Is(op.err, volume.ErrInfeasible) {
		atLeast = e.options.Backoff.infeasible()
	}
	e.table.Fail(op.claim.Subject, op.err, atLeast)
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
