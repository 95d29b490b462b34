package treewalk

import (
	"context"
	"time"
)

// Grace is how long a call that was told to stop may take to end before it is left behind. A call that is not stuck in the
// kernel ends within microseconds.
const Grace = 250 * time.Millisecond

// Call is a function that runs in a goroutine of its own.
type Call struct {
	done chan struct{}
	err  error // once done is closed
}

// Start calls f with ctx in a goroutine of its own, which ends with f.
func Start(ctx context.Context, f func(context.Context) error) *Call {
	c := &Call{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.err = f(ctx)
	}()
	return c
}

// Done returns a channel that is closed when the function has returned.
func (c *Call) Done() <-chan struct{} { return c.done }

// Wait waits for the function and returns its error. When ctx ends first and the function does not within [Grace], the
// error is a [*LostError].
func (c *Call) Wait(ctx context.Context, call, path string) error {
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
	}
	grace := time.NewTimer(Grace)
	defer grace.Stop()
	select {
	case <-c.done:
		return c.err
	case <-grace.C:
		return NewLostError(call, path, ctx.Err(), c.done)
	}
}
