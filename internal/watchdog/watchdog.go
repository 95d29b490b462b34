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

// Owner receives what happens to a call. Its methods are called with the watchdog's lock held, so they must return at once:
// they may count, or start a goroutine. None is called after the call has returned in time.
type Owner interface {
	// Slow is called when the call has taken longer than SlowAfter.
	Slow()
	// Abandoned is called when the call has not returned within its grace.
	Abandoned()
	// Returned is called when an abandoned call has returned after all, before its Done closes.
	Returned()
}

// Call is one call. Set its exported fields before [Watchdog.Begin], and do not change them until [Watchdog.End]. A call
// that returned in time may be used again.
type Call struct {
	// Owner receives what happens to the call. Required.
	Owner Owner
	// Watch bounds the call by a context. Nil: only the timeout does.
	Watch *Watch
	// Started is the begin of the call, and Timeout its longest duration. Grace is how long after its timeout, or after the
	// end of its context, it may still return.
	Started        time.Time
	Timeout, Grace time.Duration
	// SlowAfter is how long the call may take before it is slow. If it is zero, or not less than Timeout, the call is never
	// slow.
	SlowAfter time.Duration

	// The watchdog's lock guards the following fields.

	stage stage
	due   time.Time     // when the next stage begins
	index int           // in the heap
	done  chan struct{} // made when the call is abandoned, closed when it has returned
}

// stage is the stage of a call. A call moves only to later stages.
type stage uint8

const (
	running   stage = iota
	slow            // it has taken longer than SlowAfter
	expired         // its time has ended, and its grace runs
	abandoned       // it has not returned within the grace
)

// Run calls f. Stack finds a hanging call by the frame of Run, which costs nothing until Stack is called.
//
//go:noinline
func (c *Call) Run(f func() error) error {
	err := f()
	runtime.KeepAlive(c)
	return err
}

// Done returns a channel that closes when an abandoned call has returned. It is nil for any other call.
func (c *Call) Done() <-chan struct{} { return c.done }

// Stack returns the stack of the goroutine that is in Run, as runtime.Stack writes it, and "" if there is none. Reading it
// stops all goroutines for a moment.
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

// Watch bounds successive calls by one context. It watches that context once for all of them.
type Watch struct {
	watchdog *Watchdog
	stop     func() bool

	// The watchdog's lock guards the following fields.

	over bool  // the context has ended
	call *Call // the running call, if any
}

// Watch bounds the calls of watch by ctx, until [Watch.Stop].
func (w *Watchdog) Watch(ctx context.Context, watch *Watch) {
	watch.watchdog = w
	if ctx.Done() != nil {
		watch.stop = context.AfterFunc(ctx, watch.contextEnded)
	}
}

// Stop stops watching the context.
func (w *Watch) Stop() {
	if w.stop != nil {
		w.stop()
	}
}

func (w *Watch) contextEnded() {
	w.watchdog.mu.Lock()
	defer w.watchdog.mu.Unlock()
	w.over = true
	if w.call != nil {
		w.watchdog.expire(w.call)
	}
}

// Watchdog watches running calls. The zero value is ready to use. It starts nothing but a timer.
type Watchdog struct {
	mu        sync.Mutex
	calls     calls // running calls that are not abandoned
	abandoned map[*Call]struct{}
	timer     *time.Timer
	fires     time.Time // when the timer fires; zero if it does not run
}

// Begin watches a call that is about to run.
func (w *Watchdog) Begin(c *Call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c.stage, c.due, c.done = running, c.Started.Add(c.Timeout), nil
	if 0 < c.SlowAfter && c.SlowAfter < c.Timeout {
		c.due = c.Started.Add(c.SlowAfter)
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

// End ends the watch of a call that has returned. It returns false if the call was abandoned before.
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

// Hung returns the owners of the abandoned calls that have not returned, in no particular order.
func (w *Watchdog) Hung() []Owner {
	w.mu.Lock()
	defer w.mu.Unlock()
	var hung []Owner
	for c := range w.abandoned {
		hung = append(hung, c.Owner)
	}
	return hung
}

// StopIdleTimer stops the timer if no call runs. A running timer would keep the owner of the watchdog in memory.
func (w *Watchdog) StopIdleTimer() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.calls) == 0 && w.timer != nil {
		w.timer.Stop()
		w.timer, w.fires = nil, time.Time{}
	}
}

// arm sets the timer to the first due time. It does not postpone a timer that fires earlier. The caller holds the lock.
func (w *Watchdog) arm() {
	if len(w.calls) == 0 {
		return
	}
	first := w.calls[0].due
	if !w.fires.IsZero() && !first.Before(w.fires) {
		return
	}
	w.fires = first
	if w.timer == nil {
		w.timer = time.AfterFunc(time.Until(first), w.timerFired)
		return
	}
	w.timer.Reset(time.Until(first))
}

// timerFired moves each due call to its next stage.
func (w *Watchdog) timerFired() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fires = time.Time{}
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

// expire begins the grace of a call. The caller holds the lock.
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

// calls is a heap of calls, ordered by due time.
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
