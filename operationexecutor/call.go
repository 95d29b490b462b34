package operationexecutor

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"time"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/internal/watchdog"
	"github.com/volumekit/volumekit/volume"
)

// This file is the one place from which plugins are called.

// ErrGoexit is the value of a [volume.PanicError] of a call that ended its goroutine by runtime.Goexit instead of
// returning.
var ErrGoexit = errors.New("runtime.Goexit was called")

// errNotCalled matches the error of a call that was never made, because ctx ended before a worker was free.
var errNotCalled = errors.New("the plugin was not called")

func notCalled(err error) bool { return errors.Is(err, errNotCalled) }

// call says how a plugin is called.
type call struct {
	// name is the method, and the name of the step.
	name string
	// timeout bounds the call.
	timeout time.Duration
	// changes says that the call may have an effect. If its result is unknown, it is then uncertain.
	changes bool
}

// changing returns the call of a method that has an effect.
func (x *execution) changing(name string) call {
	return call{name: name, timeout: x.timeout(), changes: true}
}

// reading returns the call of one method or several that have no effect.
func (x *execution) reading(name string) call { return call{name: name, timeout: x.timeout()} }

// pluginCall is one call that runs.
type pluginCall struct {
	watchdog.Call
	call
	op           *Operation
	workers      *workers
	hasWorker    bool
	countsAsSlow bool // it runs longer than slowAfter, without a worker
	// abandoned ends the operation without the call. It runs in a goroutine of its own.
	abandoned func(c *pluginCall)

	err    error // the error of a call that has ended
	exits  bool  // the call ends its goroutine
	inTime bool  // the call was not abandoned
}

// Slow implements watchdog.Owner.
func (c *pluginCall) Slow() {
	if !c.workers.mayGiveBack() {
		return
	}
	if c.hasWorker {
		c.workers.release()
	}
	c.hasWorker, c.countsAsSlow = false, true
	c.workers.slow.Add(1)
	c.op.execution.worker.Slow(c.op)
}

// Abandoned implements watchdog.Owner.
func (c *pluginCall) Abandoned() {
	c.freeWorker()
	c.workers.hung.Add(1)
	go c.abandoned(c)
}

// Returned implements watchdog.Owner.
func (c *pluginCall) Returned() { c.workers.hung.Add(-1) }

// freeWorker gives the call's worker back.
func (c *pluginCall) freeWorker() {
	if c.hasWorker {
		c.workers.release()
	}
	if c.countsAsSlow {
		c.workers.slow.Add(-1)
	}
	c.hasWorker, c.countsAsSlow = false, false
}

// lostError returns the error of a call that was abandoned in an operation that ctx bounds.
func (c *pluginCall) lostError(ctx context.Context) error {
	cause := context.Cause(ctx)
	if cause == nil {
		cause = context.DeadlineExceeded
	}
	if !c.changes {
		return outcome.NewAbandonedRead(c.name, cause, c.Done())
	}
	return outcome.NewAbandonedError(c.name, "", cause, c.Done())
}

// change calls f, which has an effect, with the deadline of the operation's kind.
func (x *execution) change(ctx context.Context, name string, f func(ctx context.Context) error) error {
	return x.call(ctx, x.changing(name), f)
}

// perform is [execution.call] for a method that returns a value.
func perform[T any](ctx context.Context, x *execution, c call, f func(ctx context.Context) (T, error)) (value T, err error) {
	err = x.call(ctx, c, func(ctx context.Context) (err error) {
		value, err = f(ctx)
		return err
	})
	return value, err
}

// call calls f as one step: in this goroutine, with a deadline, when a worker of the plugin is free. The error is safe to read.
// It is uncertain if the end of the context may have interrupted a call with an effect.
func (x *execution) call(ctx context.Context, what call, f func(ctx context.Context) error) error {
	c := x.prepare(&x.calling, what)
	if err := c.workers.acquire(ctx); err != nil {
		return x.notStarted(c, err)
	}
	c.hasWorker = true
	ctx, c.Timeout = x.session.context(c.timeout) //nolint:contextcheck // It ends with that of the operation.
	return x.callHere(c, func() error { return f(ctx) })
}

// construct calls a method of the plugin that does no I/O and returns something; nil is refused. It needs no worker.
func construct[T any](ctx context.Context, x *execution, name string, f func() (T, error)) (value T, err error) {
	c := x.prepare(&x.calling, x.reading(name))
	if err := c.workers.mayCall(ctx); err != nil {
		return value, x.notStarted(c, err)
	}
	err = x.callHere(c, func() (err error) {
		value, err = f()
		if err == nil && any(value) == nil {
			err = fmt.Errorf("%s of plugin %q returned neither a value nor an error: %w", name, x.pluginName(), volume.ErrInvalid)
		}
		return err
	})
	return value, err
}

// found is a plugin that was looked up.
type found[T any] struct {
	plugin T
	name   string
}

// find looks a plugin up and makes its name known. It is a check, also where the caller has looked the plugin up before: since
// then plugins may have been added or removed, and a volume that two of them serve by now is refused.
func find[T volume.VolumePlugin](ctx context.Context, x *execution, f func() (T, error)) (T, error) {
	p, err := construct(ctx, x, "FindPlugin", func() (found[T], error) {
		plugin, err := f()
		if err != nil {
			return found[T]{}, err
		}
		return found[T]{plugin: plugin, name: plugin.GetPluginName()}, nil
	})
	if err == nil {
		x.op.setPlugin(p.name)
	}
	return p.plugin, err
}

// callInGoroutine is [execution.call] for a call that the operation can do without: f runs in a goroutine of its own, and only
// its deadline bounds it. If it is abandoned, the operation continues, and the error has the methods Uncertain() bool and
// Done() <-chan struct{}.
func (x *execution) callInGoroutine(ctx context.Context, what call, f func(ctx context.Context) error) error {
	ctx = context.WithoutCancel(ctx)
	c := x.prepare(&pluginCall{}, what)
	if err := c.workers.acquire(ctx); err != nil {
		return x.notStarted(c, err)
	}
	c.hasWorker = true
	ended := make(chan error, 1)
	c.abandoned = func(c *pluginCall) { ended <- c.lostError(ctx) }
	go func() {
		ctx, cancel := context.WithTimeout(ctx, c.timeout)
		defer cancel()
		defer func() {
			if c.inTime {
				ended <- c.err
			}
		}()
		x.invoke(c, func() error { return f(ctx) })
	}()
	err := <-ended
	x.stepped(c, err)
	return err
}

// prepare makes c ready for a call.
func (x *execution) prepare(c *pluginCall, what call) *pluginCall {
	c.op, c.call, c.err, c.exits = x.op, what, nil, false
	if c.workers == nil || c.workers.name != x.op.plugin {
		c.workers = x.executor.workersOf(x.op.plugin)
	}
	c.Owner = c
	c.Timeout, c.Grace, c.SlowAfter = what.timeout, x.executor.options.Grace, slowAfter
	return c
}

// notStarted returns the error of a call that did not start, which is transient.
func (x *execution) notStarted(c *pluginCall, err error) error {
	err = volume.Transient(fmt.Errorf("%s: %w: %w", c.name, errNotCalled, err))
	x.addStep(Step{Name: c.name, Started: time.Now(), Err: err})
	return err
}

// callHere makes a call in this goroutine. If it returns errAbandoned, the operation has already ended. If the call ends the
// goroutine, execute ends the operation.
func (x *execution) callHere(c *pluginCall, f func() error) (err error) {
	defer func() {
		if !c.inTime {
			x.unwound, err = errAbandoned, errAbandoned
			return
		}
		if err = c.err; c.exits {
			x.unwound = err
		}
		x.stepped(c, err)
	}()
	c.Watch = x.session.watch
	x.invoke(c, f)
	return nil
}

// invoke makes a call and stores its result in c, also if the call panics or ends its goroutine.
func (x *execution) invoke(c *pluginCall, f func() error) {
	returned := false
	calls := &x.executor.calls
	c.Started = time.Now()
	calls.Begin(&c.Call)
	defer func() {
		if !returned {
			value := recover()
			c.exits = value == nil
			c.err = c.panicked(c.workers.name, x.redactPanic(c.workers.name, value))
		}
		if c.inTime = calls.End(&c.Call); c.inTime {
			c.freeWorker()
		}
	}()
	c.err = x.redact(c.workers.name, c.checkError(c.workers.name, c.Run(f)))
	returned = true
}

// panicked returns the error of a call that did not return. It must be called while the panic unwinds, for the stack.
func (c call) panicked(plugin string, value any) error {
	if value == nil {
		value = ErrGoexit
	}
	return c.unknown(&volume.PanicError{Plugin: plugin, Call: c.name, Value: value, Stack: debug.Stack()})
}

// unknown returns the error of a call whose effect is unknown: uncertain if it may have one.
func (c call) unknown(err error) error {
	if c.changes {
		return volume.Uncertain(err)
	}
	return err
}

// checkError returns err if its methods can be called safely; otherwise an error that says what is wrong with it. If err only
// says that the context has ended, a call with an effect is uncertain.
func (c call) checkError(plugin string, err error) error {
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

// read calls all methods of err that will be called later, and returns the panic of one of them as an error.
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
	var probe *PluginHungError // No plugin's error is one. This calls each method As.
	_ = errors.As(err, &probe)
	return nil
}
