package operationexecutor

import (
	"context"
	"runtime"
	"time"
)

// flight is one call of a plugin that is under way, and the context that the call gets. It costs no timer, no goroutine
// and, until somebody asks for it, no channel: the executor keeps flights of one timeout in a queue that has one timer for
// all (see watch.go).
//
// It is begun by takeOff. Whoever of the call and of the watch is first ends it: land, when the call has returned, or
// giveUp, when it has not returned a grace after its context ended.
type flight struct {
	op      *Operation
	plugin  *pluginCalls  // nil when the call was not made
	started time.Duration // since the operation has its key
	timeout time.Duration

	// What follows is guarded by the executor's lock.

	stage         stage
	gaveWorker    bool // it was slow, and has no worker any more
	queue         *queue
	before, after *flight // in its queue
	seldom        *seldom

	// What follows is the context. The operation's lock guards it.

	parent context.Context //nolint:containedctx // It is a context, and this its parent.
	err    error           // why it has ended
	awaits *awaits
}

// seldom is what a flight needs that is not the only one of its operation, or that does not go as it should. It is nil for
// others.
type seldom struct {
	// call is nil when the call is the whole operation.
	call *call
	// leg is what the operation does after the call, when it does not wait beside.
	leg    leg
	onward context.Context //nolint:containedctx // It is that of the operation.
	// stop ends the registration with a context that is not that of the operation; nil when there is none.
	stop func() bool
	due  time.Duration // the end of the grace, since the executor began
	// ended gets one value, which never blocks: true when the call has returned, false when the flight is given up. It is
	// nil when nobody waits for it.
	ended chan bool
	// returned is made when the flight is given up, and closed when its call has returned after all.
	returned chan struct{}
}

// awaits is what waits for the end of a context; there is none until somebody asks.
type awaits struct {
	done   chan struct{}
	afters map[*func()]struct{}
}

// call is what is called. One that is the whole operation changes the world, and has its name.
func (f *flight) call() call {
	if f.op.alone != nil {
		return call{name: f.op.claim.Subject.Kind, timeout: f.timeout, changes: true}
	}
	return *f.seldom.call
}

// seldoms returns what few flights have. The executor's lock must be held.
func (f *flight) seldoms() *seldom {
	if f.seldom == nil {
		f.seldom = &seldom{}
	}
	return f.seldom
}

// stage is how far a flight is.
type stage uint8

// A flight goes from each stage to a later one only.
const (
	onGround stage = iota
	flying         // the call runs
	slow           // it has run for longer than workerPatience
	expired        // its context has ended, and the grace runs
	landed         // the call has returned
	lost           // the call was left behind
)

func (f *flight) tookOff() bool { return f.plugin != nil }

// startedAt is when the call began, or the operation when the call was not made.
func (f *flight) startedAt() time.Time { return f.op.claim.Started.Add(f.started) }

// runner makes a call.
type runner interface {
	run(ctx context.Context) error
}

// runs is a runner that is one function.
type runs func(ctx context.Context) error

func (r runs) run(ctx context.Context) error { return r(ctx) }

// fly makes the call. Its frame, with the flight as its first argument, is how the goroutine of the call is found when it
// hangs: that costs nothing as long as nobody asks.
//
//go:noinline
func (f *flight) fly(r runner) error {
	err := r.run(f)
	runtime.KeepAlive(f)
	return err
}

// end ends the context. Only the first cause counts.
func (f *flight) end(cause error) {
	f.op.mu.Lock()
	if f.err != nil {
		f.op.mu.Unlock()
		return
	}
	f.err = cause
	var afters map[*func()]struct{}
	if w := f.awaits; w != nil {
		afters, w.afters = w.afters, nil
		if w.done != nil {
			close(w.done)
		}
	}
	f.op.mu.Unlock()
	for after := range afters {
		go (*after)()
	}
}

// awaited returns what waits for the end. The operation's lock must be held.
func (f *flight) awaited() *awaits {
	if f.awaits == nil {
		f.awaits = &awaits{}
	}
	return f.awaits
}

// Deadline implements context.Context.
func (f *flight) Deadline() (time.Time, bool) {
	deadline := f.startedAt().Add(f.timeout)
	if parents, ok := f.parent.Deadline(); ok && parents.Before(deadline) {
		return parents, true
	}
	return deadline, true
}

// Done implements context.Context.
func (f *flight) Done() <-chan struct{} {
	f.op.mu.Lock()
	defer f.op.mu.Unlock()
	w := f.awaited()
	if w.done == nil {
		w.done = make(chan struct{})
		if f.err != nil {
			close(w.done)
		}
	}
	return w.done
}

// Err implements context.Context.
func (f *flight) Err() error {
	f.op.mu.Lock()
	defer f.op.mu.Unlock()
	return f.err
}

// Value implements context.Context.
func (f *flight) Value(key any) any { return f.parent.Value(key) }

// AfterFunc is what package context asks of a context that is not its own, so that one that is derived from this one
// needs no goroutine.
func (f *flight) AfterFunc(do func()) (stop func() bool) {
	f.op.mu.Lock()
	defer f.op.mu.Unlock()
	if f.err != nil {
		go do()
		return func() bool { return false }
	}
	w := f.awaited()
	if w.afters == nil {
		w.afters = map[*func()]struct{}{}
	}
	w.afters[&do] = struct{}{}
	return func() bool {
		f.op.mu.Lock()
		defer f.op.mu.Unlock()
		_, waits := w.afters[&do]
		delete(w.afters, &do)
		return waits
	}
}
