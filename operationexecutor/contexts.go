package operationexecutor

import (
	"context"
	"reflect"
	"time"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/internal/watchdog"
)

// callContexts has the contexts of the calls that one goroutine makes one after the other. To make and to end a context with a
// deadline takes as long as a call that has nothing to do; so calls that begin soon after one another share one, within a
// hundredth of their timeout.
type callContexts struct {
	// parent is the context of the operation that runs; watch tells the watchdog when it ends.
	parent context.Context //nolint:containedctx // It is only compared with that of the next operation.
	watch  *watchdog.Watch
	// bounded has a context for each timeout.
	bounded map[time.Duration]boundedContext
}

// boundedContext is a context with a deadline.
type boundedContext struct {
	context.Context //nolint:containedctx // It is passed to calls.
	cancel          context.CancelFunc
}

// follow has the calls that follow end with ctx.
func (c *callContexts) follow(ctx context.Context, dog *watchdog.Watchdog) {
	if c.parent != nil && reflect.ValueOf(ctx).Comparable() && c.parent == ctx {
		return
	}
	c.stop()
	c.parent, c.watch = ctx, &watchdog.Watch{}
	dog.Watch(ctx, c.watch)
}

// of returns a context that ends with that of the operation, and after timeout at the latest, or up to a hundredth earlier.
func (c *callContexts) of(timeout time.Duration) (ctx context.Context, left time.Duration) {
	if b, ok := c.bounded[timeout]; ok {
		deadline, _ := b.Deadline()
		if left := time.Until(deadline); left > timeout-timeout/100 {
			return b.Context, left
		}
		b.cancel()
	}
	bounded, cancel := context.WithTimeout(c.parent, timeout)
	if c.bounded == nil {
		c.bounded = make(map[time.Duration]boundedContext, 1)
	}
	c.bounded[timeout] = boundedContext{Context: abandonable.Guarded(bounded), cancel: cancel}
	return c.bounded[timeout].Context, timeout
}

// stop ends the contexts, and the watch of that of the operation.
func (c *callContexts) stop() {
	for _, b := range c.bounded {
		b.cancel()
	}
	clear(c.bounded)
	if c.watch != nil {
		c.watch.Stop()
	}
	c.parent = nil
}
