package operationexecutor

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// flight is one call of a plugin that is under way, and the context that the call gets. It costs no timer, no goroutine
// and, until somebody asks for it, no channel: the executor keeps flights of one timeout in a queue that has one timer for
// all (see watch.go).
//
// It is begun by takeOff. Whoever of the call and of the watch is first ends it: land, when the call has returned, or
// giveUp, when it has not returned a grace after its context ended.
type flight struct {
	call    call
	op      *Operation
	plugin  *pluginCalls  // nil when the call was not made
	started time.Duration // since the operation has its key

	// What follows is guarded by the executor's lock.

	// stop ends the registration with a context that is not that of the operation; nil when there is none.
	stop          func() bool
	stage         stage
	queue         *queue
	before, after *flight       // in its queue
	due           time.Duration // since the executor began
	// givenUp is closed when the flight is given up, returned when its call has returned after all. The first is nil
	// when nobody waits for it.
	givenUp, returned chan struct{}

	// What follows is the context.

	parent context.Context //nolint:containedctx // It is a context, and this its parent.

	mu     sync.Mutex
	done   chan struct{} // made when it is asked for
	err    error         // why it has ended
	afters map[*func()]struct{}
}

// stage is how far a flight is.
type stage uint8

// A flight goes from each stage to a later one only.
const (
	onGround stage = iota
	flying         // the call runs
	expired        // its context has ended, and the grace runs
	landed         // the call has returned
	lost           // the call was left behind
)

func (f *flight) tookOff() bool { return f.plugin != nil }

// startedAt is when the call began, or the operation when the call was not made.
func (f *flight) startedAt() time.Time { return f.op.claim.Started.Add(f.started) }

// fly calls f. Its frame, with the flight as its first argument, is how the goroutine of the call is found when it hangs:
// that costs nothing as long as nobody asks.
//
//go:noinline
func (f *flight) fly(run func(ctx context.Context) error) error {
	err := run(f)
	runtime.KeepAlive(f)
	return err
}

// end ends the context. Only the first cause counts.
func (f *flight) end(cause error) {
	f.mu.Lock()
	if f.err != nil {
		f.mu.Unlock()
		return
	}
	f.err = cause
	afters := f.afters
	f.afters = nil
	if f.done != nil {
		close(f.done)
	}
	f.mu.Unlock()
	for after := range afters {
		go (*after)()
	}
}

// Deadline implements context.Context.
func (f *flight) Deadline() (time.Time, bool) {
	deadline := f.startedAt().Add(f.call.timeout)
	if parents, ok := f.parent.Deadline(); ok && parents.Before(deadline) {
		return parents, true
	}
	return deadline, true
}

// Done implements context.Context.
func (f *flight) Done() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done == nil {
		f.done = make(chan struct{})
		if f.err != nil {
			close(f.done)
		}
	}
	return f.done
}

// Err implements context.Context.
func (f *flight) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// Value implements context.Context.
func (f *flight) Value(key any) any { return f.parent.Value(key) }

// AfterFunc is what package context asks of a context that is not its own, so that one that is derived from this one
// needs no goroutine.
func (f *flight) AfterFunc(do func()) (stop func() bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		go do()
		return func() bool { return false }
	}
	if f.afters == nil {
		f.afters = map[*func()]struct{}{}
	}
	f.afters[&do] = struct{}{}
	return func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		_, waits := f.afters[&do]
		delete(f.afters, &do)
		return waits
	}
}
