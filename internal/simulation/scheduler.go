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

// Scheduler runs the goroutines of a testing/synctest bubble one at a time, in an order that a seed decides. The code under test
// waits for a turn ([Scheduler.Take]) before each contact with the outside. One goroutine, the driver, gives the turns, in
// [Scheduler.Sleep] and [Scheduler.Await]. A turn ends when every goroutine of the bubble is blocked again, including those that the
// turn has woken. Time passes only while no goroutine waits for a turn, except for one nanosecond per turn: no two turns happen at
// the same time.
//
// Make it with [NewScheduler].
type Scheduler struct {
	random *rand.Rand
	trace  *Trace
	came   chan struct{} // holds a token if a goroutine has begun to wait

	mu      sync.Mutex
	waiting []*turn // by label
}

// turn is the turn of one goroutine.
type turn struct {
	label string
	begin chan struct{} // closed when the turn begins
}

// NewScheduler returns a scheduler whose order random decides. Each turn is a step of trace.
func NewScheduler(random *rand.Rand, trace *Trace) *Scheduler {
	return &Scheduler{random: random, trace: trace, came: make(chan struct{}, 1)}
}

// Take waits for a turn. The label names the caller: two goroutines may have the same label only if they would do the same.
func (s *Scheduler) Take(label string) {
	<-s.enter(label).begin
}

// TakeUnless waits for a turn. It returns false if ctx ends first.
func (s *Scheduler) TakeUnless(ctx context.Context, label string) bool {
	waits := s.enter(label)
	select {
	case <-waits.begin:
		return true
	case <-ctx.Done():
		s.leave(waits)
		return false
	}
}

func (s *Scheduler) enter(label string) *turn {
	waits := &turn{label: label, begin: make(chan struct{})}
	s.mu.Lock()
	// Goroutines with the same label are interchangeable. They are in the order in which they came.
	i, _ := slices.BinarySearchFunc(s.waiting, label, func(other *turn, label string) int { return cmp.Or(strings.Compare(other.label, label), -1) })
	s.waiting = slices.Insert(s.waiting, i, waits)
	s.mu.Unlock()
	select {
	case s.came <- struct{}{}:
	default: // The driver knows already.
	}
	return waits
}

func (s *Scheduler) leave(waits *turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = slices.DeleteFunc(s.waiting, func(other *turn) bool { return other == waits })
}

// Sleep lets time pass and gives turns to all goroutines that wait meanwhile. Only the driver calls it.
func (s *Scheduler) Sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for over := false; ; {
		s.giveAll()
		if over {
			return
		}
		select {
		case <-timer.C:
			over = true
		case <-s.came:
		}
	}
}

// Await gives turns and lets time pass until done is closed. Only the driver calls it.
func (s *Scheduler) Await(done <-chan struct{}) {
	for over := false; ; {
		s.giveAll()
		if over {
			return
		}
		select {
		case <-done:
			over = true
		case <-s.came:
		}
	}
}

// giveAll gives turns until no goroutine waits for one and every goroutine is blocked.
func (s *Scheduler) giveAll() {
	synctest.Wait()
	for s.give() {
		time.Sleep(time.Nanosecond) //nolint:forbidigo // The time of the bubble passes while all sleep.
		synctest.Wait()
	}
}

// give gives one turn, and reports whether a goroutine waited for one.
func (s *Scheduler) give() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		return false
	}
	i := s.random.IntN(len(s.waiting))
	next := s.waiting[i]
	s.waiting = slices.Delete(s.waiting, i, i+1)
	s.trace.Step(next.label)
	close(next.begin)
	return true
}
