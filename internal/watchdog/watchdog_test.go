package watchdog_test

import (
	"context"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/volumekit/volumekit/internal/watchdog"
)

// owner records the time of each call of its methods.
type owner struct {
	began    time.Time
	mu       sync.Mutex
	learned  map[string]time.Duration
	inLock   func()
	sequence []string
}

func (o *owner) Slow()      { o.note("slow") }
func (o *owner) Abandoned() { o.note("abandoned") }
func (o *owner) Returned()  { o.note("returned") }

func (o *owner) all() map[string]time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.learned)
}

func (o *owner) note(what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.learned[what] = time.Since(o.began)
	o.sequence = append(o.sequence, what)
	if o.inLock != nil {
		o.inLock()
	}
}

// newCall returns a call of ten minutes that is slow after ten seconds and has a grace of two.
func newCall() (*watchdog.Call, *owner) {
	o := &owner{began: time.Now(), learned: map[string]time.Duration{}}
	return &watchdog.Call{
		Owner: o, Started: time.Now(), Timeout: 10 * time.Minute, Grace: 2 * time.Second, SlowAfter: 10 * time.Second,
	}, o
}

func TestACallThatReturnsInTimeIsNotAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w watchdog.Watchdog
		for _, lasts := range []time.Duration{0, 10*time.Second - 1, 10*time.Minute + 2*time.Second - 1} {
			c, o := newCall()
			w.Begin(c)
			time.Sleep(lasts)
			synctest.Wait()
			assert.True(t, w.End(c))
			assert.NotContains(t, o.all(), "abandoned")
			assert.Equal(t, lasts > 10*time.Second, len(o.all()) == 1)
			assert.Nil(t, c.Done())
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		w.StopIdleTimer()
	})
}

func TestACallThatDoesNotReturnIsAbandonedAfterItsGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w watchdog.Watchdog
		c, o := newCall()
		w.Begin(c)
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.Equal(t, map[string]time.Duration{"slow": 10 * time.Second, "abandoned": 10*time.Minute + 2*time.Second}, o.all())
		assert.Equal(t, []watchdog.Owner{o}, w.Hung())
		o.inLock = func() {
			select {
			case <-c.Done():
				assert.Fail(t, "its owner learns first that it has returned")
			default:
			}
		}
		assert.False(t, w.End(c))
		assert.Equal(t, []string{"slow", "abandoned", "returned"}, o.sequence)
		<-c.Done()
		assert.Empty(t, w.Hung())
		w.StopIdleTimer()
	})
}

// TestTheEndOfAContextEndsTheCallsThatItBounds: the running call, and calls that begin later.
func TestTheEndOfAContextEndsTheCallsThatItBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w watchdog.Watchdog
		ctx, cancel := context.WithCancel(t.Context())
		watch := new(watchdog.Watch)
		w.Watch(ctx, watch)
		other, stays := newCall()
		w.Begin(other)
		for range 2 {
			c, o := newCall()
			c.Watch = watch
			w.Begin(c)
			cancel()
			time.Sleep(2*time.Second - 1)
			synctest.Wait()
			assert.Empty(t, o.all())
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			assert.Equal(t, map[string]time.Duration{"abandoned": 2 * time.Second}, o.all())
			assert.False(t, w.End(c))
		}
		assert.Empty(t, stays.all())
		assert.True(t, w.End(other))
		watch.Stop()

		ctx, cancel = context.WithCancel(t.Context())
		watch = new(watchdog.Watch)
		w.Watch(ctx, watch)
		c, o := newCall()
		c.Watch = watch
		w.Begin(c)
		assert.True(t, w.End(c))
		watch.Stop()
		cancel()
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Empty(t, o.all())
		w.StopIdleTimer()
	})
}

// TestCallsOfManyDeadlinesAreEachAbandonedInTime: this includes calls that begin later and are due earlier.
func TestCallsOfManyDeadlinesAreEachAbandonedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w watchdog.Watchdog
		var all []*watchdog.Call
		for i := range 50 {
			c, o := newCall()
			c.Timeout = time.Duration((i*37)%50+1) * time.Second
			c.SlowAfter = 0
			w.Begin(c)
			if i%3 == 0 {
				assert.True(t, w.End(c))
				continue
			}
			defer func() {
				assert.Equal(t, map[string]time.Duration{"abandoned": c.Timeout + c.Grace, "returned": time.Minute}, o.all())
			}()
			all = append(all, c)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, c := range all {
			assert.False(t, w.End(c))
		}
		w.StopIdleTimer()
	})
}

func standsHere(release <-chan struct{}) error { <-release; return nil }

func TestTheStackOfACallIsThatOfItsGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newCall()
		other, _ := newCall()
		release := make(chan struct{})
		go func() { _ = c.Run(func() error { return standsHere(release) }) }()
		synctest.Wait()
		assert.Contains(t, c.Stack(), "watchdog_test.standsHere(")
		assert.Empty(t, other.Stack())
		close(release)
		synctest.Wait()
		assert.Empty(t, c.Stack())
	})
}
