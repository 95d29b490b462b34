package operationexecutor

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"sync"
	"time"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/volume"
)

// This file is the one place from which plugins are called.

// ErrGoexit is the value of a [volume.PanicError] of a call that ended its goroutine by runtime.Goexit instead of
// returning.
var ErrGoexit = errors.New("runtime.Goexit was called")

// errNotEnded is the cause of an operation whose goroutine ended before the operation did, by a panic or a
// runtime.Goexit in a port.
var errNotEnded = volume.Uncertain(errors.New("the operation was broken off by a panic outside of the plugin"))

// execution is one operation that runs. It belongs to the operation's goroutine.
type execution struct {
	op       *Operation
	executor *Executor
	// lost are closed when calls that were left behind, by us or by the plugin, have really ended.
	lost []<-chan struct{}
}

// call says how a plugin is called.
type call struct {
	// name is the method, and the name of the step.
	name string
	// timeout bounds the call.
	timeout time.Duration
	// changes says that the call may change the world, so that a call of which nothing is known is uncertain.
	changes bool
}

// answer is what a call returned.
type answer[T any] struct {
	value T
	err   error
}

// change calls f, which changes the world, with the deadline of the operation's kind.
func (x *execution) change(ctx context.Context, name string, f func(ctx context.Context) error) error {
	_, err := perform(ctx, x, x.changing(name), func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) })
	return err
}

// changing returns the call of a method that changes the world.
func (x *execution) changing(name string) call {
	return call{name: name, timeout: x.timeout(), changes: true}
}

// asking returns the call of a method, or of several, that change nothing.
func (x *execution) asking(name string) call { return call{name: name, timeout: x.timeout()} }

func (x *execution) timeout() time.Duration {
	return x.executor.options.Timeouts.of(x.op.Info().Kind)
}

// step does f, which is not a call of a plugin, and tells of it.
func (x *execution) step(name string, f func() error) error {
	started := time.Now()
	err := f()
	x.stepped(Step{Name: name, Started: started, Duration: time.Since(started), Err: err})
	return err
}

func (x *execution) stepped(s Step) {
	x.op.addStep(s)
	if o := x.executor.options.Observer; o != nil {
		o.OperationStepped(x.op.Info(), s)
	}
}

// stillRunning returns the calls that were left behind and have not ended.
func (x *execution) stillRunning() []<-chan struct{} {
	var running []<-chan struct{}
	for _, done := range x.lost {
		select {
		case <-done:
		default:
			running = append(running, done)
		}
	}
	return running
}

// perform calls f as one step: in a goroutine of its own, with a deadline, when a worker of the plugin is free. The
// error is safe to read, and its class is true for a call that was broken off. A value is passed through a channel, so
// that a call that was left behind shares no memory with the operation.
func perform[T any](ctx context.Context, x *execution, c call, f func(ctx context.Context) (T, error)) (T, error) {
	started := time.Now()
	value, err := performInTurn(ctx, x, c, f)
	x.lost = append(x.lost, outcome.Running(err)...)
	x.stepped(Step{Name: c.name, Started: started, Duration: time.Since(started), Err: err})
	return value, err
}

func performInTurn[T any](ctx context.Context, x *execution, c call, f func(ctx context.Context) (T, error)) (T, error) {
	var none T
	plugin := x.op.Info().PluginName
	release, err := x.executor.workers.acquire(ctx, plugin)
	if err != nil {
		return none, volume.Transient(fmt.Errorf("%s: %w: %w", c.name, errNotCalled, err))
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	answers, ended := make(chan answer[T], 1), make(chan struct{})
	go func() {
		defer close(ended)
		protect(plugin, c, answers, func() (T, error) { return f(ctx) })
	}()
	a, ok := await(ctx, x.executor.options.Grace, answers)
	if !ok {
		return none, &LostError{Call: c.name, changes: c.changes, cause: context.Cause(ctx), done: ended}
	}
	return a.value, a.err
}

// await returns the answer, or false when it has not come a grace after ctx ended.
func await[T any](ctx context.Context, grace time.Duration, answers <-chan answer[T]) (answer[T], bool) {
	select {
	case a := <-answers:
		return a, true
	case <-ctx.Done():
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case a := <-answers:
		return a, true
	case <-timer.C:
	}
	select {
	case a := <-answers:
		return a, true
	default:
		return answer[T]{}, false
	}
}

// protect calls f and sends one answer whatever f does, short of ending the process.
func protect[T any](plugin string, c call, answers chan<- answer[T], f func() (T, error)) {
	var a answer[T]
	returned := false
	defer func() {
		if !returned {
			a = answer[T]{err: panicked(plugin, c, recover())}
		}
		answers <- a
	}()
	a.value, a.err = f()
	a.err = c.sane(plugin, a.err)
	returned = true
}

// panicked returns the error of a call that did not return. It must be called while the panic unwinds, for the stack.
func panicked(plugin string, c call, value any) error {
	if value == nil {
		value = ErrGoexit
	}
	return c.unknown(&volume.PanicError{Plugin: plugin, Call: c.name, Value: value, Stack: debug.Stack()})
}

// unknown marks the error of a call of which nothing is known.
func (c call) unknown(err error) error {
	if c.changes {
		return volume.Uncertain(err)
	}
	return err
}

// sane returns err if it can be read without harm, else an error that says what is wrong with it. A call that was broken
// off by its context and says no more than that is uncertain, whatever the plugin meant.
func (c call) sane(plugin string, err error) error {
	if err == nil {
		return nil
	}
	if v := reflect.ValueOf(err); v.Kind() == reflect.Pointer && v.IsNil() {
		return c.unknown(fmt.Errorf("%s of plugin %q returned a nil %T as its error: return a plain nil instead: %w",
			c.name, plugin, err, volume.ErrInvalid))
	}
	if bad := read(plugin, c, err); bad != nil {
		return bad
	}
	if c.changes && outcome.ClassOf(err) == Final && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return volume.Uncertain(err)
	}
	return err
}

// read reads all that will be read of err, and returns the panic of one that cannot be.
func read(plugin string, c call, err error) (bad error) {
	defer func() {
		if value := recover(); value != nil {
			c.name += " (reading its error)"
			bad = panicked(plugin, c, value)
		}
	}()
	_ = err.Error()
	_ = outcome.ClassOf(err)
	_ = outcome.Running(err)
	return nil
}

// LostError is the error of a call of a plugin that had not returned a grace after its context ended, and that was left
// behind. It matches volume.ErrUncertain when the call may change the world, and what ended the context.
type LostError struct {
	// Call is the method.
	Call string

	changes bool
	cause   error
	done    <-chan struct{}
}

// Error names the call.
func (e *LostError) Error() string {
	return fmt.Sprintf("%s has not returned and was left behind: %v", e.Call, e.cause)
}

// Uncertain reports whether the call may change the world.
func (e *LostError) Uncertain() bool { return e.changes }

// Done returns a channel that is closed when the call has returned.
func (e *LostError) Done() <-chan struct{} { return e.done }

// Is reports whether target is volume.ErrUncertain and the call may change the world.
func (e *LostError) Is(target error) bool { return e.changes && target == volume.ErrUncertain }

// Unwrap returns what ended the call's context.
func (e *LostError) Unwrap() error { return e.cause }

// workers bounds the calls of each plugin that run at once.
type workers struct {
	limit int

	mu    sync.Mutex
	slots map[string]chan struct{} // by plugin; there are as many as plugins
}

// acquire waits for a worker of plugin. The error is what ended ctx.
func (w *workers) acquire(ctx context.Context, plugin string) (release func(), err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	slots := w.of(plugin)
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("no worker of plugin %q became free: %w", plugin, context.Cause(ctx))
	}
}

func (w *workers) of(plugin string) chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.slots[plugin] == nil {
		w.slots[plugin] = make(chan struct{}, w.limit)
	}
	return w.slots[plugin]
}
