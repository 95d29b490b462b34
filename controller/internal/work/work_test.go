package work

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/backoff"
	"github.com/volumekit/volumekit/store"
)

var steady = backoff.Policy{Initial: time.Second, Jitter: -1}

func TestHeldBelongsToTheUID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(steady)
		defer w.Stop()
		key := Item{Claim, types.NamespacedName{Name: "c"}}
		for _, wait := range []time.Duration{time.Second, 2 * time.Second} {
			w.release(key, &CallError{UID: "first", Err: errors.New("no room")})
			require.NoError(t, w.CheckBackoff(key, "second"), "a new object of the name does not wait")
			var held *heldError
			require.ErrorAs(t, w.CheckBackoff(key, "first"), &held)
			assert.Equal(t, wait, time.Until(held.until))
		}
		w.release(key, &CallError{UID: "second", Err: errors.New("no room")})
		var held *heldError
		require.ErrorAs(t, w.CheckBackoff(key, "second"), &held)
		assert.Equal(t, time.Second, time.Until(held.until), "nor does it inherit the failures")
		time.Sleep(time.Second)
		require.NoError(t, w.CheckBackoff(key, "second"))
	})
}

// A write that lost against another neither shortens the wait of a plugin nor lengthens any other.
func TestConflictsHaveABackoffOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(steady)
		defer w.Stop()
		key := Item{Claim, types.NamespacedName{Name: "c"}}
		w.release(key, &CallError{UID: "u", Err: errors.Join(errors.New("no room"), store.ErrConflict)})
		var held *heldError
		require.ErrorAs(t, w.CheckBackoff(key, "u"), &held)
		assert.Equal(t, time.Second, time.Until(held.until))

		for range 5 {
			w.release(key, store.ErrConflict)
		}
		w.release(key, &CallError{UID: "u", Err: errors.New("no room")})
		require.ErrorAs(t, w.CheckBackoff(key, "u"), &held)
		assert.Equal(t, 2*time.Second, time.Until(held.until))
	})
}

// An item that is added while it is worked on is worked on again afterwards, never beside.
func TestOneWorkerPerItem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(steady)
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		running, most, runs := 0, 0, 0
		var workers sync.WaitGroup
		for range 4 {
			workers.Go(func() {
				w.Run(ctx, func(context.Context, Item) error {
					mu.Lock()
					running++
					runs++
					most = max(most, running)
					mu.Unlock()
					time.Sleep(time.Second)
					mu.Lock()
					running--
					mu.Unlock()
					return nil
				})
			})
		}
		for range 5 {
			w.Add(Claim, types.NamespacedName{Name: "c"})
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		mu.Lock()
		assert.Equal(t, 1, most)
		assert.Equal(t, 2, runs)
		mu.Unlock()
		cancel()
		workers.Wait()
		w.Stop()
	})
}

// An item whose cause is gone is looked at at once, also if that is said while it is looked at.
func TestRetryEndsTheBackoff(t *testing.T) {
	for name, busy := range map[string]bool{"while it waits": false, "while it is looked at": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := New(steady)
				ctx, cancel := context.WithCancel(t.Context())
				key := Item{Claim, types.NamespacedName{Name: "c"}}
				looks := 0
				var worker sync.WaitGroup
				worker.Go(func() {
					w.Run(ctx, func(context.Context, Item) error {
						if err := w.CheckBackoff(key, "u"); err != nil {
							return err
						}
						looks++
						if busy && looks == 1 {
							w.Retry(key)
						}
						return &CallError{UID: "u", Err: errors.New("not ready")}
					})
				})
				w.Add(key.Kind, key.Name)
				synctest.Wait()
				if !busy {
					w.Add(key.Kind, key.Name)
					synctest.Wait()
					require.Equal(t, 1, looks, "the back-off lasts")
					w.Retry(key)
					synctest.Wait()
				}
				assert.Equal(t, 2, looks)
				w.Add(key.Kind, key.Name)
				synctest.Wait()
				assert.Equal(t, 2, looks, "it failed again")
				cancel()
				worker.Wait()
				w.Stop()
			})
		})
	}
}

// An item that waits for another one is synced as soon as the sync of that one has ended. Its own failures stay as they are.
func TestAnItemWaitsForTheSyncOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(steady)
		ctx, cancel := context.WithCancel(t.Context())
		claim, pv := Item{Claim, types.NamespacedName{Name: "c"}}, Item{Kind: Volume, Name: types.NamespacedName{Name: "v"}}
		w.release(pv, &CallError{UID: "u", Err: errors.New("not ready")})
		require.NoError(t, w.AwaitSync(pv, claim), "no worker has it")
		began := time.Now()
		var synced []time.Duration
		var workers sync.WaitGroup
		workers.Go(func() {
			w.RunWorkers(ctx, 2, func(_ context.Context, item Item) error {
				if item == claim {
					time.Sleep(500 * time.Millisecond)
					return nil
				}
				synced = append(synced, time.Since(began))
				if err := w.AwaitSync(item, claim); err != nil {
					assert.False(t, IsFailure(err))
					return err
				}
				return w.CheckBackoff(item, "u")
			})
		})
		w.Add(claim.Kind, claim.Name)
		synctest.Wait()
		w.Add(pv.Kind, pv.Name)
		time.Sleep(600 * time.Millisecond)
		synctest.Wait()
		assert.Equal(t, []time.Duration{0, 500 * time.Millisecond}, synced)
		assert.Empty(t, w.after)
		assert.Equal(t, 1, w.failures[pv].count)
		cancel()
		workers.Wait()
		w.Stop()
	})
}
