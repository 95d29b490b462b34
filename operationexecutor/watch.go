package operationexecutor

import (
	"context"
	"fmt"
	"time"

	"github.com/volumekit/volumekit/volume"
)

// This file watches the calls that are under way: it takes their workers from those that are slow, ends their contexts at
// their deadlines and gives up those that have not returned a grace later.

// workerPatience is how long a call keeps its worker: what takes longer waits for something.
const workerPatience = 10 * time.Second

// queue holds the flights that are due a certain time after they entered it: those that enter later are due later, so that
// entering and leaving cost the same however many there are. It has one timer, which runs while the queue is not empty,
// and once more after that.
type queue struct {
	lasts       time.Duration
	first, last *flight
	timer       *time.Timer
	armed       bool
}

func (q *queue) add(f *flight) {
	f.queue = q
	f.before, f.after = q.last, nil
	if q.last != nil {
		q.last.after = f
	} else {
		q.first = f
	}
	q.last = f
}

func (q *queue) remove(f *flight) {
	if f.before != nil {
		f.before.after = f.after
	} else {
		q.first = f.after
	}
	if f.after != nil {
		f.after.before = f.before
	} else {
		q.last = f.before
	}
	f.queue, f.before, f.after = nil, nil, nil
}

// takeOff begins a call, when a worker of its plugin is free. The error is transient: the call was not made.
func (f *flight) takeOff(ctx context.Context) error {
	f.parent = ctx
	e := f.op.executor()
	calls := e.callsOfPlugin(f.op.plugin)
	if err := calls.acquire(ctx, e.options.HungPerPlugin); err != nil {
		return f.notMade(err)
	}
	f.plugin = calls
	if !e.launch(f, time.Now(), ctx.Done()) { //nolint:contextcheck // The flight is the context.
		f.watchContext(ctx)
	}
	return nil
}

func (f *flight) notMade(err error) error {
	return volume.Transient(fmt.Errorf("%s: %w: %w", f.call().name, errNotCalled, err))
}

// launch puts f into the queue. It returns false when nobody watches its context, or when that has ended already.
func (e *Executor) launch(f *flight, now time.Time, done <-chan struct{}) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.launchNow(f, now)
	return f.op.bound.done == done && !f.op.bound.ended
}

// launchNow is launch with the lock held.
func (e *Executor) launchNow(f *flight, now time.Time) {
	f.started, f.stage = now.Sub(f.op.claim.Started), flying
	e.enqueue(f, min(f.timeout, workerPatience))
	if x := f.op.x; x != nil {
		x.flight = f
	}
}

// watchContext ends the flight when a context ends that is not that of the operation.
func (f *flight) watchContext(ctx context.Context) {
	e := f.op.executor()
	stop := context.AfterFunc(ctx, func() { e.expire(f, ctx.Err()) })
	e.mu.Lock()
	defer e.mu.Unlock()
	f.seldoms().stop = stop
}

// land ends a call that has returned. It returns false when the call was given up meanwhile, so that the operation goes on
// without it.
func (e *Executor) land(f *flight) bool {
	e.mu.Lock()
	if f.stage == lost {
		delete(e.hung, f)
		f.plugin.hung.Add(-1)
		e.mu.Unlock()
		close(f.seldom.returned)
		return false
	}
	f.stage = landed
	f.leaveQueue()
	stop := f.stopper()
	keeps := f.leaveSlow()
	e.mu.Unlock()
	if keeps {
		f.plugin.release()
	}
	if stop != nil {
		stop()
	}
	f.end(context.Canceled)
	return true
}

// leaveQueue takes f from the calls that are under way. The lock must be held.
func (f *flight) leaveQueue() {
	f.queue.remove(f)
	if x := f.op.x; x != nil {
		x.flight = nil
	}
}

// stopper returns what ends the registration with a context of its own, if there is one. The lock must be held.
func (f *flight) stopper() func() bool {
	if f.seldom == nil {
		return nil
	}
	return f.seldom.stop
}

// enqueue makes f due in a time. The lock must be held.
func (e *Executor) enqueue(f *flight, in time.Duration) {
	q := e.queues[in]
	if q == nil {
		q = &queue{lasts: in}
		e.queues[in] = q
	}
	q.add(f)
	if !q.armed {
		e.arm(q, in)
	}
}

func (e *Executor) arm(q *queue, in time.Duration) {
	q.armed = true
	if q.timer == nil {
		q.timer = time.AfterFunc(in, func() { e.ring(q) })
		return
	}
	q.timer.Reset(in)
}

// ring is the timer of a queue: it takes out what is due.
func (e *Executor) ring(q *queue) {
	var ended, gone []*flight
	e.mu.Lock()
	now := time.Since(e.epoch)
	for q.first != nil && e.due(q.first) <= now {
		f := q.first
		switch {
		case f.stage == flying && f.timeout > workerPatience:
			e.slowDown(f)
		case f.stage == expired:
			e.giveUp(f)
			gone = append(gone, f)
		default:
			e.startGrace(f, now)
			ended = append(ended, f)
		}
	}
	if q.first != nil {
		e.arm(q, e.due(q.first)-now)
	} else if q.armed = false; e.queues[q.lasts] == q {
		delete(e.queues, q.lasts)
	}
	e.mu.Unlock()
	for _, f := range ended {
		f.end(context.DeadlineExceeded)
	}
	for _, f := range gone {
		e.gaveUp(f)
	}
}

// stopTimers stops the timers that nobody waits for: an executor that rests does not wake up, and nothing holds it.
func (e *Executor) stopTimers() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for lasts, q := range e.queues {
		if q.first == nil {
			q.timer.Stop()
			delete(e.queues, lasts)
		}
	}
}

// expire ends the context of a flight before its deadline.
func (e *Executor) expire(f *flight, cause error) {
	e.mu.Lock()
	begun := f.stage == flying || f.stage == slow
	if begun {
		e.startGrace(f, time.Since(e.epoch))
	}
	e.mu.Unlock()
	if begun {
		f.end(cause)
	}
}

// slowDown takes the worker from f, unless too many have given theirs already. The lock must be held.
func (e *Executor) slowDown(f *flight) {
	f.stage = slow
	f.queue.remove(f)
	e.enqueue(f, f.timeout-workerPatience)
	if int(f.plugin.hung.Load())+f.plugin.slow < e.options.HungPerPlugin {
		f.gaveWorker = true
		f.plugin.slow++
		f.plugin.release()
	}
}

// leaveSlow takes f from the slow calls, and reports whether it has a worker. The lock must be held.
func (f *flight) leaveSlow() (hasWorker bool) {
	if f.gaveWorker {
		f.plugin.slow--
	}
	return !f.gaveWorker
}

// startGrace gives f the time that a call has to return after its context has ended. The lock must be held.
func (e *Executor) startGrace(f *flight, now time.Duration) {
	f.stage = expired
	f.queue.remove(f)
	f.seldoms().due = now + e.options.Grace
	e.enqueue(f, e.options.Grace)
}

// due is when f is taken from its queue, since the executor began. The lock must be held.
func (e *Executor) due(f *flight) time.Duration {
	switch f.stage {
	case expired:
		return f.seldom.due
	case flying:
		return f.startedAt().Add(min(f.timeout, workerPatience)).Sub(e.epoch)
	default:
		return f.startedAt().Add(f.timeout).Sub(e.epoch)
	}
}

// giveUp leaves the call of f behind. The lock must be held.
func (e *Executor) giveUp(f *flight) {
	f.stage = lost
	f.leaveSlow()
	f.leaveQueue()
	f.seldoms().returned = make(chan struct{})
	f.plugin.hung.Add(1)
	e.hung[f] = struct{}{}
}

// gaveUp lets the plugin's other calls and the operation go on.
func (e *Executor) gaveUp(f *flight) {
	e.mu.Lock()
	stop, keeps := f.stopper(), !f.gaveWorker
	e.mu.Unlock()
	if keeps {
		f.plugin.release()
	}
	if stop != nil {
		stop()
	}
	switch {
	case f.op.alone != nil:
		go f.op.loseAlone(f)
	case f.seldom.leg != nil:
		go f.op.proceed(f.seldom.onward, f.seldom.leg.lost)
	default:
		f.seldom.ended <- false
	}
}

// lostError is the error of a call that was given up.
func (f *flight) lostError() error {
	return &LostError{Call: f.call().name, changes: f.call().changes, cause: context.Cause(f), done: f.seldom.returned}
}
