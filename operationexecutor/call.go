package operationexecutor

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"time"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/volume"
)

// This file is the one place from which plugins are called, but for operations that are one call (see execution.go).

// ErrGoexit is the value of a [volume.PanicError] of a call that ended its goroutine by runtime.Goexit instead of
// returning.
var ErrGoexit = errors.New("runtime.Goexit was called")

// call says how a plugin is called.
type call struct {
	// name is the method, and the name of the step.
	name string
	// timeout bounds the call.
	timeout time.Duration
	// changes says that the call may change the world, so that a call of which nothing is known is uncertain.
	changes bool
	// always says that it is made also when the operation's context has ended.
	always bool
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
	return x.executor.options.timeout(x.op.plugin, x.op.kind())
}

// perform calls f as one step: in a goroutine of its own, with a deadline, when a worker of the plugin is free. The
// error is safe to read, and its class is true for a call that was broken off. What every volume needs is called by then,
// which needs no other goroutine.
func perform[T any](ctx context.Context, x *execution, c call, do func(ctx context.Context) (T, error)) (T, error) {
	r := &errand[T]{do: do}
	r.prepare(x, c)
	a, _ := r.answerOf(ctx)
	x.flown(&r.flight, a.err)
	return a.value, a.err
}

// errCalls is what the code of an operation returns when a call comes next; errGoesOn says that the operation goes on in
// another goroutine. Nobody else sees them.
var (
	errCalls  = errors.New("a call comes next")
	errGoesOn = errors.New("the operation goes on elsewhere")
)

func isCalls(err error) bool { return err == errCalls } //nolint:errorlint // It is this very error.

// leg is a call, and the code of its operation that comes after it.
type leg interface {
	// fly makes the call, in the goroutine of the operation. It returns false when the operation goes on elsewhere.
	fly(ctx context.Context) bool
	// goOn is the code after the call, which has returned or was not made.
	goOn(ctx context.Context) error
	// lost is the code after a call that was given up.
	lost(ctx context.Context) error
}

// then has f called as one step: in the goroutine of the operation, with a deadline, when a worker of the plugin is free.
// What it returns is to be returned by the code of the operation, which goes on with next. The error that next gets is
// that of perform.
func then[T any](x *execution, c call, do func(ctx context.Context) (T, error), next func(ctx context.Context, value T, err error) error) error {
	r := &errand[T]{do: do, next: next}
	r.prepare(x, c)
	r.rare.leg = r
	x.leg = r
	return errCalls
}

// thenCall is then for a call that returns no more than an error.
func (x *execution) thenCall(c call, do func(ctx context.Context) error, next func(ctx context.Context, err error) error) error {
	r := &errand[struct{}]{doPlain: do, nextPlain: next}
	r.prepare(x, c)
	r.rare.leg = r
	x.leg = r
	return errCalls
}

// errand is one call by an operation of several steps: its flight, and what is called.
type errand[T any] struct {
	flight
	rare seldom
	what call
	next func(ctx context.Context, value T, err error) error // nil: the operation waits
	// doPlain and nextPlain are in the place of do and next of a call that returns no more than an error.
	doPlain   func(ctx context.Context) error
	nextPlain func(ctx context.Context, err error) error
	// lent is what the plugin was given in this operation when the call began.
	lent lentSpecs
	// name is that of the plugin when the call begins.
	name   string
	do     func(ctx context.Context) (T, error)
	answer answer[T] // that of the call's goroutine, until the flight has landed
}

func (r *errand[T]) prepare(x *execution, c call) {
	r.what, r.name, r.lent = c, x.op.plugin, x.lentSpecs()
	r.rare.call = &r.what
	r.op, r.timeout, r.seldom = x.op, c.timeout, &r.rare
}

// answerOf makes the call beside. What it writes must not be read unless it has returned.
func (r *errand[T]) answerOf(ctx context.Context) (a answer[T], hasReturned bool) {
	r.rare.ended = r.op.x.endings()
	if err := r.takeOff(ctx); err != nil {
		return answer[T]{err: err}, false
	}
	go r.flyBeside() //nolint:contextcheck // The flight is the context.
	if <-r.rare.ended {
		return r.answer, true
	}
	return answer[T]{err: r.lostError()}, false //nolint:contextcheck // The flight is the context.
}

// fly implements leg.
func (r *errand[T]) fly(ctx context.Context) bool {
	r.rare.onward = ctx
	if r.what.always {
		ctx = context.WithoutCancel(ctx)
	}
	if err := r.takeOff(ctx); err != nil {
		r.answer.err = err
		return true
	}
	return r.flyHere(r) //nolint:contextcheck // The flight is the context.
}

// flyHere makes the call, and returns false when the operation goes on elsewhere: when the call was given up, or when it
// ends the goroutine.
func (r *errand[T]) flyHere(l leg) (isHere bool) {
	returned := false
	defer func() {
		if returned {
			return
		}
		value := recover()
		r.answer = answer[T]{err: r.call().panicked(r.name, r.lent.redactPanic(r.name, value))}
		isHere = r.op.executor().land(&r.flight)
		if isHere && value == nil { // The call ends this goroutine.
			go r.op.proceed(r.rare.onward, l.goOn)
		}
	}()
	err := r.flight.fly(r)
	r.answer.err = r.lent.redact(r.name, r.call().sane(r.name, err))
	returned = true
	return r.op.executor().land(&r.flight)
}

// goOn implements leg.
func (r *errand[T]) goOn(ctx context.Context) error {
	r.op.x.flown(&r.flight, r.answer.err)
	return r.after(ctx, r.answer)
}

func (r *errand[T]) after(ctx context.Context, a answer[T]) error {
	if r.nextPlain != nil {
		return r.nextPlain(ctx, a.err)
	}
	return r.next(ctx, a.value, a.err)
}

// lost implements leg. The answer may still be written.
func (r *errand[T]) lost(ctx context.Context) error {
	err := r.lostError() //nolint:contextcheck // The flight is the context.
	r.op.x.flown(&r.flight, err)
	return r.after(ctx, answer[T]{err: err})
}

// flyBeside is the goroutine of a call. It tells of one answer whatever the call does, short of ending the process, unless
// the call was given up.
func (r *errand[T]) flyBeside() {
	returned := false
	defer func() {
		if !returned {
			r.answer = answer[T]{err: r.call().panicked(r.name, r.lent.redactPanic(r.name, recover()))}
		}
		if r.op.executor().land(&r.flight) {
			r.rare.ended <- true
		}
	}()
	err := r.flight.fly(r)
	r.answer.err = r.lent.redact(r.name, r.call().sane(r.name, err))
	returned = true
}

// run makes the call itself.
func (r *errand[T]) run(ctx context.Context) (err error) {
	if r.doPlain != nil {
		return r.doPlain(ctx)
	}
	r.answer.value, err = r.do(ctx)
	return err
}

// panicked returns the error of a call that did not return. It must be called while the panic unwinds, for the stack.
func (c call) panicked(plugin string, value any) error {
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
			bad = c.panicked(plugin, value)
		}
	}()
	_ = err.Error()
	_ = outcome.ClassOf(err)
	_ = outcome.Running(err)
	var probe *PluginHungError // No plugin's error is one; it makes each method As speak.
	_ = errors.As(err, &probe)
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
