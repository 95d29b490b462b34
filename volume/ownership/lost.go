package ownership

import (
	"context"
	"fmt"
	"time"
)

// LostError is the error of work that was left behind because its context ended and the filesystem did not answer. The
// work may still go on, and have its effect: the error matches [ErrUncertain]. It matches the context's error, too.
type LostError struct {
	// Dir is the root of the tree.
	Dir string

	cause error
	done  <-chan struct{}
}

// Error names the tree.
func (e *LostError) Error() string {
	return fmt.Sprintf("ownership of %q: the filesystem does not answer, and the work was left behind: %v", e.Dir, e.cause)
}

// Uncertain returns true.
func (e *LostError) Uncertain() bool { return true }

// Done returns a channel that is closed when the work has really ended. It never is if the kernel never returns.
func (e *LostError) Done() <-chan struct{} { return e.done }

// Is reports whether target is ErrUncertain.
func (e *LostError) Is(target error) bool { return target == ErrUncertain }

// Unwrap returns the context's error.
func (e *LostError) Unwrap() error { return e.cause }

// grace is how long work that was told to stop may take to end. What is not stuck in the kernel ends within microseconds.
const grace = 250 * time.Millisecond

// call is a function that runs in a goroutine of its own, which ends with it.
type call struct {
	done chan struct{}
	err  error // once done is closed
}

func start(ctx context.Context, f func(context.Context) error) *call {
	c := &call{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.err = f(ctx)
	}()
	return c
}

// wait returns the error of the function, or leaves it behind soon after ctx has ended.
func (c *call) wait(ctx context.Context, dir string) error {
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-c.done:
		return c.err
	case <-timer.C:
		return &LostError{Dir: dir, cause: ctx.Err(), done: c.done}
	}
}
