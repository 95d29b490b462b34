package simulation

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"
)

// Turns lets the goroutines of a bubble of testing/synctest go on one at a time, in an order that a seed decides. Code under test
// takes a turn, by [Turns.Take], wherever it asks the outside; one goroutine, the driver, gives the turns, in [Turns.Sleep] and
// [Turns.Await]. A turn ends when every goroutine of the bubble is blocked again, whichever of them the turn has woken. Time
// passes only while no goroutine waits for a turn, but for one nanosecond a turn, so that no two turns share a moment.
//
// Make it with [NewTurns].
type Turns struct {
	random *rand.Rand
	trace  *Trace
	came   chan struct{} // holds a token when a goroutine has begun to wait

	mu      sync.Mutex
	waiting []*turn // by label
}

// turn is that of one goroutine.
type turn struct {
	label string
	begin chan struct{} // closed when it is given
}

// NewTurns returns turns that are given in the order of random. Each is a step of trace.
func NewTurns(random *rand.Rand, trace *Trace) *Turns {
	return &Turns{random: random, trace: trace, came: make(chan struct{}, 1)}
}

// Take waits for a turn. The label says whose it is: give the same one only to goroutines that would do the same.
func (t *Turns) Take(label string) {
	<-t.enter(label).begin
}

// TakeUnless waits for a turn, and reports false without one when ctx ends first.
func (t *Turns) TakeUnless(ctx context.Context, label string) bool {
	waits := t.enter(label)
	select {
	case <-waits.begin:
		return true
	case <-ctx.Done():
		t.leave(waits)
		return false
	}
}

func (t *Turns) enter(label string) *turn {
	waits := &turn{label: label, begin: make(chan struct{})}
	t.mu.Lock()
	// Those with the same label are interchangeable; the first who came is the first to go.
	i, _ := slices.BinarySearchFunc(t.waiting, label, func(other *turn, label string) int { return cmp.Or(strings.Compare(other.label, label), -1) })
	t.waiting = slices.Insert(t.waiting, i, waits)
	t.mu.Unlock()
	select {
	case t.came <- struct{}{}:
	default: // The driver knows already.
	}
	return waits
}

func (t *Turns) leave(waits *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting = slices.DeleteFunc(t.waiting, func(other *turn) bool { return other == waits })
}

// Sleep lets time pass, and gives turns to all who want one meanwhile. For the driver.
func (t *Turns) Sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for over := false; ; {
		t.giveAll()
		if over {
			return
		}
		select {
		case <-timer.C:
			over = true
		case <-t.came:
		}
	}
}

// Await gives turns until done is closed, and time passes. For the driver.
func (t *Turns) Await(done <-chan struct{}) {
	for over := false; ; {
		t.giveAll()
		if over {
			return
		}
		select {
		case <-done:
			over = true
		case <-t.came:
		}
	}
}

// giveAll gives turns until no goroutine waits for one and every goroutine is blocked.
func (t *Turns) giveAll() {
	synctest.Wait()
	for t.give() {
		time.Sleep(time.Nanosecond) //nolint:forbidigo // The time of the bubble passes while all sleep.
		synctest.Wait()
	}
}

// give gives one turn, and reports whether a goroutine waited for one.
func (t *Turns) give() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) == 0 {
		return false
	}
	i := t.random.IntN(len(t.waiting))
	next := t.waiting[i]
	t.waiting = slices.Delete(t.waiting, i, i+1)
	t.trace.Step(next.label)
	close(next.begin)
	return true
}
