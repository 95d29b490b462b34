package volume

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/volumekit/volumekit/internal/outcome"
)

// flight runs one call at a time. Callers that come while it runs share it, and each leaves when its own context ends.
// The zero value is ready to use.
//
// The goroutine of a call ends when the call returns, and with it all that the call has left behind. A call that heeds
// its context returns soon after the last caller has left; a system call that cannot be interrupted is left behind, and
// nothing starts beside it: who comes then waits for its end.
type flight[T any] struct {
	mu      sync.Mutex
	running *flightCall[T]
}

// flightCall is one call that runs, or has run.
type flightCall[T any] struct {
	cancel  context.CancelFunc
	waiters int           // guarded by flight.mu; a call that nobody waits for any more is cancelled
	landed  bool          // guarded by flight.mu; whether ready is closed
	ready   chan struct{} // closed when value and err are set
	ended   chan struct{} // closed when every system call behind the call has returned
	value   T
	err     error
}

// call says what is called, for errors.
type call struct{ name, path string }

func (c call) String() string {
	if c.path == "" {
		return c.name
	}
	return fmt.Sprintf("%s of %q", c.name, c.path)
}

// do calls run, or waits for the call of another caller, and returns its answer. run gets a context that ends when the
// last caller has left. When ctx ends first the error is a [*lostError]; when it has ended already, nothing is begun.
func (f *flight[T]) do(ctx context.Context, what call, run func(context.Context) (T, error)) (T, error) {
	var none T
	if ctx.Err() != nil {
		return none, fmt.Errorf("%v was not begun: %w: %w", what, ErrTransient, context.Cause(ctx))
	}
	for {
		c, joined := f.join(ctx, run)
		answer := c.ended
		if joined {
			answer = c.ready
		}
		select {
		case <-answer:
			if joined {
				return c.value, c.err
			}
		case <-ctx.Done():
			if joined {
				f.leave(c)
			}
			return none, &lostError{what: what, cause: context.Cause(ctx), done: c.ended}
		}
	}
}

// join starts a call, or joins the one that runs. It does not join one that is cancelled or has given its answer already:
// that must end first.
func (f *flight[T]) join(ctx context.Context, run func(context.Context) (T, error)) (c *flightCall[T], joined bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.running; c != nil {
		if c.waiters == 0 || c.landed {
			return c, false
		}
		c.waiters++
		return c, true
	}
	c = &flightCall[T]{waiters: 1, ready: make(chan struct{}), ended: make(chan struct{})}
	ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	f.running = c
	go f.run(ctx, c, run)
	return c, true
}

func (f *flight[T]) leave(c *flightCall[T]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c.waiters--
	if c.waiters == 0 {
		c.cancel()
	}
}

func (f *flight[T]) run(ctx context.Context, c *flightCall[T], run func(context.Context) (T, error)) {
	defer f.land(c)
	c.err = errGoexit // unless the call returns or panics
	err := guard("", "GetMetrics", func() { c.value, c.err = run(ctx) })
	if err != nil {
		c.err = err
	}
}

// land hands the answer of c to its callers, and makes way for the next call when nothing of this one is left.
func (f *flight[T]) land(c *flightCall[T]) {
	c.cancel()
	f.mu.Lock()
	c.landed = true
	f.mu.Unlock()
	close(c.ready)
	if lost := outcome.DoneOf(c.err); lost != nil {
		<-lost // what was called left a call of its own behind
	}
	f.mu.Lock()
	f.running = nil
	f.mu.Unlock()
	close(c.ended)
}

// errGoexit is the error of a call that ended its goroutine by runtime.Goexit.
var errGoexit = errors.New("GetMetrics ended its goroutine instead of returning")

// lostError says that the caller did not wait for the end of a call.
type lostError struct {
	what  call
	cause error
	done  <-chan struct{}
}

// Error says what was left behind and why.
func (e *lostError) Error() string {
	return fmt.Sprintf("%v has not returned and is left behind: %v", e.what, e.cause)
}

// Unwrap returns the end of the caller's context and [ErrUncertain].
func (e *lostError) Unwrap() []error { return []error{e.cause, ErrUncertain} }

// Uncertain is always true.
func (e *lostError) Uncertain() bool { return true }

// Done is closed when the call has really ended.
func (e *lostError) Done() <-chan struct{} { return e.done }
