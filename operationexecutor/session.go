package operationexecutor

import (
	"context"
	"reflect"
	"time"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/internal/watchdog"
)

// session is what the operations that one goroutine runs one after the other share.
//
// To make and to end a context with a deadline takes as long as a call that has nothing to do. So calls that begin soon after one
// another share one, within a hundredth of their timeout. An attachment and a mount of one volume share the copy of its spec.
type session struct {
	// parent is the context of the operation that runs; watch tells the watchdog when it ends.
	parent context.Context //nolint:containedctx // It is only compared with that of the next operation.
	watch  *watchdog.Watch
	// bounded has a context for each timeout.
	bounded map[time.Duration]boundedContext
	// spec is the copy that the last operation gave its plugin, which has left it as it was; its original is nil when there is none.
	spec specCopy
}

// boundedContext is a context with a deadline.
type boundedContext struct {
	context.Context //nolint:containedctx // It is passed to calls.
	cancel          context.CancelFunc
}

// follow has the calls that follow end with ctx.
func (s *session) follow(ctx context.Context, calls *watchdog.Watchdog) {
	if s.parent != nil && reflect.ValueOf(ctx).Comparable() && s.parent == ctx {
		return
	}
	s.stop()
	s.parent, s.watch = ctx, &watchdog.Watch{}
	calls.Watch(ctx, s.watch)
}

// context returns one that ends with that of the operation, and after timeout at the latest, or up to a hundredth earlier.
func (s *session) context(timeout time.Duration) (ctx context.Context, left time.Duration) {
	if b, ok := s.bounded[timeout]; ok {
		deadline, _ := b.Deadline()
		if left := time.Until(deadline); left > timeout-timeout/100 {
			return b.Context, left
		}
		b.cancel()
	}
	bounded, cancel := context.WithTimeout(s.parent, timeout)
	if s.bounded == nil {
		s.bounded = make(map[time.Duration]boundedContext, 1)
	}
	s.bounded[timeout] = boundedContext{Context: abandonable.Guarded(bounded), cancel: cancel}
	return s.bounded[timeout].Context, timeout
}

// stop drops all that is shared: it ends the contexts, and the watch of that of the operation.
func (s *session) stop() {
	for _, b := range s.bounded {
		b.cancel()
	}
	clear(s.bounded)
	if s.watch != nil {
		s.watch.Stop()
	}
	s.parent = nil
	s.dropSpec()
}
