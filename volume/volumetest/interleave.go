package volumetest

import (
	"context"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/volumekit/volumekit/volume"
)

// A call under test makes steps: a mounter of Yielding has one before and one after whatever it does. They are known by the
// context, which a plugin hands on to its mounter.

// mostSteps is how many steps of a call are tried at most.
const mostSteps = 64

type stepKey struct{}

// steps does something once, in the nth step of the calls that have its context.
type steps struct {
	mu   sync.Mutex
	left int
	do   func()
	done bool
}

func atStep(ctx context.Context, n int, do func()) (context.Context, *steps) {
	s := &steps{left: n, do: do}
	return context.WithValue(ctx, stepKey{}, s), s
}

// reached reports whether the call has come so far.
func (s *steps) reached() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}

// step is called by the mounter of a plugin.
func step(ctx context.Context) {
	s, ok := ctx.Value(stepKey{}).(*steps)
	if !ok {
		return
	}
	s.mu.Lock()
	now := s.left == 0 && !s.done
	s.left--
	s.done = s.done || now
	s.mu.Unlock()
	if now {
		s.do()
	}
}

// guarded makes a panic of a call in a goroutine of the suite an error.
func guarded(call func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &volume.PanicError{Call: "a call", Value: value, Stack: debug.Stack()}
		}
	}()
	return call()
}

// interleaved holds the first call in its nth step, until the second has returned or waits for the first. It reports whether
// the first has that many steps; else the second comes after the first.
func (r *caseRun) interleaved(n int, first, second func(context.Context) error) (errFirst, errSecond error, reached bool) {
	held, goOn := make(chan struct{}), make(chan struct{})
	ctx, s := atStep(r.ctx(), n, func() {
		close(held)
		<-goOn
	})
	one, two := start(func() error { return first(ctx) }), (*running)(nil)
	select {
	case <-held:
		two = start(func() error { return second(r.ctx()) })
		two.await()
		close(goOn)
	case <-one.done:
		two = start(func() error { return second(r.ctx()) })
	}
	<-one.done
	<-two.done
	return one.err, two.err, s.reached()
}

// running is a call in a goroutine of its own.
type running struct {
	id   string
	err  error
	done chan struct{}
	// stacks is the memory of allStacks.
	stacks []byte
}

func start(call func() error) *running {
	r, begun := &running{done: make(chan struct{})}, make(chan struct{})
	go func() {
		defer close(r.done)
		buf := make([]byte, 64)
		r.id, _, _ = strings.Cut(string(buf[:runtime.Stack(buf, false)]), " [")
		close(begun)
		r.err = guarded(call)
	}()
	<-begun
	return r
}

// await returns when the call has returned, or waits for something, as for a lock that is held.
func (r *running) await() {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for waits := 0; waits < 10; {
		select {
		case <-r.done:
			return
		case <-tick.C:
		}
		if r.waits() {
			waits++
		} else {
			waits = 0
		}
	}
}

// waits reports whether the goroutine of the call is neither running nor in the kernel.
func (r *running) waits() bool {
	_, state, found := strings.Cut(r.allStacks(), r.id+" [")
	if !found {
		return false
	}
	state, _, _ = strings.Cut(state, "]")
	for _, busy := range []string{"running", "runnable", "syscall", "IO wait", "sleep", "preempted"} {
		if strings.HasPrefix(state, busy) {
			return false
		}
	}
	return true
}

// allStacks returns the stacks of all goroutines. It keeps its memory for the next time: it is asked each millisecond, and memory
// that is new each time is slow on some kernels.
func (r *running) allStacks() string {
	for {
		n := runtime.Stack(r.stacks, true)
		if n < len(r.stacks) {
			return string(r.stacks[:n])
		}
		r.stacks = make([]byte, 2*len(r.stacks)+1<<14)
	}
}

// eachInterleaving does something for each step at which the first of two calls can be held, each time in a world of its own.
func (e *env) eachInterleaving(do func(e *env, n int) (reached bool)) {
	e.t.Helper()
	for n := range mostSteps {
		fresh := newEnv(e.t, e.c, e.config)
		e.later(fresh.cleanUp)
		if !do(fresh, n) {
			return
		}
	}
}
