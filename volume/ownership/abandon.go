package ownership

import (
	"context"
	"time"

	"github.com/volumekit/volumekit/internal/outcome"
)

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

// wait returns the error of the function, or abandons it soon after ctx has ended.
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
		return outcome.NewAbandonedError("ownership", dir, ctx.Err(), c.done)
	}
}
