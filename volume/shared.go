package volume

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/volumekit/volumekit/internal/outcome"
)

// shared runs one call at a time. Callers that come while it runs share it, and each leaves when its own context ends.
// The zero value is ready to use.
//
// The goroutine of a call ends when the call returns, and with it all calls that it abandoned. A call that heeds
// its context returns soon after the last caller has left; a system call that cannot be interrupted is abandoned, and
// nothing starts beside it: who comes then waits for its end.
type shared[T any] struct {
	mu      sync.Mutex
	running *sharedCall[T]
}

// sharedCall is one call that runs, or has run.
type sharedCall[T any] struct {
	cancel   context.CancelFunc
	waiters  int           // guarded by shared.mu; the call is cancelled when there are none
	finished bool          // guarded by shared.mu; whether ready is closed
	ready    chan struct{} // closed when value and err are set
	ended    chan struct{} // closed when every system call behind the call has returned
	value    T
	err      error
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
// last caller has left. When ctx ends first the error is an [*outcome.AbandonedError]; when it has ended already, nothing is begun.
func (s *shared[T]) do(ctx context.Context, what call, run func(context.Context) (T, error)) (T, error) {
	var none T
	if ctx.Err() != nil {
		return none, fmt.Errorf("%v was not begun: %w: %w", what, ErrTransient, context.Cause(ctx))
	}
	for {
		c, joined := s.join(ctx, run)
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
				s.leave(c)
			}
			return none, outcome.NewAbandonedError(what.name, what.path, context.Cause(ctx), c.ended)
		}
	}
}

// join starts a call, or joins the one that runs. It does not join one that is cancelled or has given its answer already:
// that must end first.
func (s *shared[T]) join(ctx context.Context, run func(context.Context) (T, error)) (c *sharedCall[T], joined bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.running; c != nil {
		if c.waiters == 0 || c.finished {
			return c, false
		}
		c.waiters++
		return c, true
	}
	c = &sharedCall[T]{waiters: 1, ready: make(chan struct{}), ended: make(chan struct{})}
	ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.running = c
	go s.run(ctx, c, run)
	return c, true
}

func (s *shared[T]) leave(c *sharedCall[T]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.waiters--
	if c.waiters == 0 {
		c.cancel()
	}
}

func (s *shared[T]) run(ctx context.Context, c *sharedCall[T], run func(context.Context) (T, error)) {
	defer s.finish(c)
	c.err = errGoexit // unless the call returns or panics
	err := guard("", "GetMetrics", func() { c.value, c.err = run(ctx) })
	if err != nil {
		c.err = err
	}
}

// finish hands the answer of c to its callers, and makes way for the next call when nothing of this one is left.
func (s *shared[T]) finish(c *sharedCall[T]) {
	c.cancel()
	s.mu.Lock()
	c.finished = true
	s.mu.Unlock()
	close(c.ready)
	if lost := outcome.DoneOf(c.err); lost != nil {
		<-lost // the call abandoned a call of its own
	}
	s.mu.Lock()
	s.running = nil
	s.mu.Unlock()
	close(c.ended)
}

// errGoexit is the error of a call that ended its goroutine by runtime.Goexit.
var errGoexit = errors.New("GetMetrics ended its goroutine instead of returning")
