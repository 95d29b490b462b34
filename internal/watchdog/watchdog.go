package watchdog

import (
	"container/heap"
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"
)

// Owner learns what becomes of a call. Its methods are called with the watchdog's lock held: they count, or start a
// goroutine, and return at once. None of them is called once the call has returned in time.
type Owner interface {
	// Slow is called when the call has taken longer than its patience.
	Slow()
	// Abandoned is called when the call has outlived its grace.
	Abandoned()
	// Returned is called when a call that was abandoned has returned after all, before its Done closes.
	Returned()
}

// Call is one call. Its exported fields are set before [Watchdog.Begin] and not changed until [Watchdog.End]; it may be
// used again when it has ended in time.
type Call struct {
	// Owner learns what becomes of the call. Required.
	Owner Owner
	// Watch bounds the call by a context. Nil: only the timeout does.
	Watch *Watch
	// Started is when the call begins. Timeout is how long it may take, and Grace how long after that, or after the end
	// of its context, it may take to return.
	Started        time.Time
	Timeout, Grace time.Duration
	// Patience is when the call is slow. Zero, and what is not less than Timeout, mean never.
	Patience time.Duration

	// The watchdog's lock guards what follows.

	stage stage
	due   time.Time     // when the next stage begins
	index int           // in the heap
	done  chan struct{} // made when the call is abandoned, closed when it has returned
}

// stage is how far a call is. Each goes from one stage to a later one only.
type stage uint8

const (
	running   stage = iota
	slow            // it has taken longer than its patience
	expired         // its time is over, and the grace runs
	abandoned       // it has not returned within the grace
)

// Run calls f. Its frame is how the stack of a call that hangs is found, at no cost as long as nobody asks.
//
//go:noinline
func (c *Call) Run(f func() error) error {
	err := f()
	runtime.KeepAlive(c)
	return err
}

// Done returns the channel that is closed when the call has returned. It is nil unless the call was abandoned.
func (c *Call) Done() <-chan struct{} { return c.done }

// Stack returns the stack of the goroutine that is in Run, as runtime.Stack writes it; empty when there is none. All
// goroutines are stopped for a moment while it is read.
func (c *Call) Stack() string {
	frame := fmt.Sprintf(".(*Call).Run(%p", c)
	for stack := range strings.SplitSeq(allStacks(), "\n\n") {
		if i := strings.Index(stack, frame); i >= 0 && strings.ContainsRune(",?)", rune(stack[i+len(frame)])) {
			return stack
		}
	}
	return ""
}

func allStacks() string {
	for buf := make([]byte, 1<<20); ; buf = make([]byte, 2*len(buf)) {
		if n := runtime.Stack(buf, true); n < len(buf) {
			return string(buf[:n])
		}
	}
}

// Watch bounds calls that are made one after the other by one context, which is watched once for all of them.
type Watch struct {
	dog  *Watchdog
	stop func() bool

	// The watchdog's lock guards what follows.

	over bool  // the context has ended
	call *Call // the one that runs, if any
}

// Watch makes watch bound calls by ctx, until it is stopped.
func (w *Watchdog) Watch(ctx context.Context, watch *Watch) {
	watch.dog = w
	if ctx.Done() != nil {
		watch.stop = context.AfterFunc(ctx, watch.contextEnded)
	}
}

// Stop ends the watch of the context.
func (w *Watch) Stop() {
	if w.stop != nil {
		w.stop()
	}
}

func (w *Watch) contextEnded() {
	w.dog.mu.Lock()
	defer w.dog.mu.Unlock()
	w.over = true
	if w.call != nil {
		w.dog.expire(w.call)
	}
}

// Watchdog knows the calls that run. The zero value is ready to use; it starts nothing but a timer.
type Watchdog struct {
	mu        sync.Mutex
	calls     calls // those that run and were not abandoned
	abandoned map[*Call]struct{}
	timer     *time.Timer
	rings     time.Time // when the timer does; zero when it does not run
}

// Begin watches a call that is about to run.
func (w *Watchdog) Begin(c *Call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c.stage, c.due, c.done = running, c.Started.Add(c.Timeout), nil
	if 0 < c.Patience && c.Patience < c.Timeout {
		c.due = c.Started.Add(c.Patience)
	}
	heap.Push(&w.calls, c)
	if c.Watch != nil {
		c.Watch.call = c
		if c.Watch.over {
			w.expire(c)
			return
		}
	}
	w.arm()
}

// End ends the watch of a call that has returned. It returns false when the call was abandoned before.
func (w *Watchdog) End(c *Call) (inTime bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.stage == abandoned {
		delete(w.abandoned, c)
		c.Owner.Returned()
		close(c.done)
		return false
	}
	w.remove(c)
	return true
}

// Hung returns the owners of the calls that were abandoned and have not returned, in no order.
func (w *Watchdog) Hung() []Owner {
	w.mu.Lock()
	defer w.mu.Unlock()
	var hung []Owner
	for c := range w.abandoned {
		hung = append(hung, c.Owner)
	}
	return hung
}

// Rest stops the timer when no call runs, so that nothing holds what the watchdog belongs to.
func (w *Watchdog) Rest() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.calls) == 0 && w.timer != nil {
		w.timer.Stop()
		w.timer, w.rings = nil, time.Time{}
	}
}

// arm has the timer ring when the first call is due. One that rings too early is left alone. The lock must be held.
func (w *Watchdog) arm() {
	if len(w.calls) == 0 {
		return
	}
	first := w.calls[0].due
	if !w.rings.IsZero() && !first.Before(w.rings) {
		return
	}
	w.rings = first
	if w.timer == nil {
		w.timer = time.AfterFunc(time.Until(first), w.ring)
		return
	}
	w.timer.Reset(time.Until(first))
}

// ring moves each call that is due to its next stage.
func (w *Watchdog) ring() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rings = time.Time{}
	for now := time.Now(); len(w.calls) > 0 && !w.calls[0].due.After(now); {
		w.advance(w.calls[0])
	}
	w.arm()
}

func (w *Watchdog) advance(c *Call) {
	switch deadline := c.Started.Add(c.Timeout); {
	case c.stage == expired:
		w.abandon(c)
	case c.due.Before(deadline):
		c.stage = slow
		w.postpone(c, deadline)
		c.Owner.Slow()
	default:
		w.expire(c)
	}
}

// expire begins the grace of a call. The lock must be held.
func (w *Watchdog) expire(c *Call) {
	if c.stage == expired {
		return
	}
	c.stage = expired
	w.postpone(c, time.Now().Add(c.Grace))
	w.arm()
}

func (w *Watchdog) abandon(c *Call) {
	w.remove(c)
	c.stage = abandoned
	c.done = make(chan struct{})
	if w.abandoned == nil {
		w.abandoned = map[*Call]struct{}{}
	}
	w.abandoned[c] = struct{}{}
	c.Owner.Abandoned()
}

func (w *Watchdog) postpone(c *Call, due time.Time) {
	c.due = due
	heap.Fix(&w.calls, c.index)
}

func (w *Watchdog) remove(c *Call) {
	heap.Remove(&w.calls, c.index)
	if c.Watch != nil {
		c.Watch.call = nil
	}
}

// calls are ordered by when they are due.
type calls []*Call

func (h calls) Len() int           { return len(h) }
func (h calls) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h calls) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *calls) Push(c any) {
	call := c.(*Call) //nolint:forcetypeassert // It is one.
	call.index = len(*h)
	*h = append(*h, call)
}

// Pop implements heap.Interface.
func (h *calls) Pop() any {
	last := len(*h) - 1
	c := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return c
}
