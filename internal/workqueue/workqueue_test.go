package workqueue

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func get(t *testing.T, q *Queue[string]) string {
	t.Helper()
	key, ok := q.Get(t.Context())
	require.True(t, ok)
	return key
}

func TestKeysComeOutOnceAndInOrder(t *testing.T) {
	q := New[string]()
	for _, key := range []string{"a", "b", "a", "c", "b"} {
		q.Add(key)
	}
	assert.Equal(t, 3, q.Len())
	assert.Equal(t, []string{"a", "b", "c"}, []string{get(t, q), get(t, q), get(t, q)})
	assert.Zero(t, q.Len())
}

func TestKeyAddedAfterItWasTakenIsQueuedAgain(t *testing.T) {
	q := New[string]()
	q.Add("a")
	assert.Equal(t, "a", get(t, q))
	q.Add("a")
	assert.Equal(t, "a", get(t, q))
}

func TestGetEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		q := New[string]()
		ended := make(chan bool)
		go func() {
			_, ok := q.Get(ctx)
			ended <- ok
		}()
		synctest.Wait()
		cancel()
		assert.False(t, <-ended)

		q.Add("a")
		_, ok := q.Get(ctx)
		assert.False(t, ok, "a context that has ended takes nothing")
		assert.Equal(t, 1, q.Len())
	})
}

func TestEveryWaitingGetIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New[int]()
		var mu sync.Mutex
		seen := make(map[int]int)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				key, _ := q.Get(t.Context())
				mu.Lock()
				defer mu.Unlock()
				seen[key]++
			})
		}
		synctest.Wait()
		for i := range 8 {
			q.Add(i)
		}
		wg.Wait()
		assert.Len(t, seen, 8)
	})
}

func TestAddAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New[string]()
		start := time.Now()
		q.AddAt("late", start.Add(time.Hour))
		q.AddAt("late", start.Add(2*time.Hour))
		q.AddAt("late", start.Add(time.Minute))
		q.AddAt("now", start.Add(-time.Second))
		assert.Equal(t, "now", get(t, q))
		assert.Equal(t, "late", get(t, q))
		assert.Equal(t, time.Minute, time.Since(start), "the earliest time counts")

		time.Sleep(3 * time.Hour)
		synctest.Wait()
		assert.Zero(t, q.Len(), "the later times were forgotten")
	})
}

func TestStopEndsTimersAndRefusesKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New[string]()
		q.AddAt("a", time.Now().Add(time.Minute))
		q.Stop()
		q.Add("b")
		q.AddAt("c", time.Now().Add(time.Minute))
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.Zero(t, q.Len())
	})
}

// ending is a context whose Err returns an error from the second call on.
type ending struct {
	context.Context //nolint:containedctx // It is a context.

	asked int
}

func (e *ending) Err() error {
	e.asked++
	if e.asked > 1 {
		return context.Canceled
	}
	return nil
}

// TestAGetThatEndsWhenItIsWokenWakesAnother: a key in the queue always wakes a caller that waits.
func TestAGetThatEndsWhenItIsWokenWakesAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New[string]()
		ended, got := make(chan bool, 1), make(chan string, 1)
		go func() {
			_, ok := q.Get(&ending{Context: t.Context()})
			ended <- ok
		}()
		synctest.Wait()
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			key, _ := q.Get(ctx)
			got <- key
		}()
		synctest.Wait()
		q.Add("a")
		assert.False(t, <-ended)
		assert.Equal(t, "a", <-got)
	})
}
