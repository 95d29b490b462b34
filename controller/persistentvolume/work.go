package persistentvolume

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/backoff"
	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/internal/workqueue"
	"github.com/volumekit/volumekit/store"
)

// conflictBackoff is the first wait after a write that lost against another; it doubles.
const conflictBackoff = 5 * time.Millisecond

// itemKind says what an item names.
type itemKind string

const (
	claimItem  itemKind = "claim"
	volumeItem itemKind = "volume"
	podItem    itemKind = "pod"
	usersItem  itemKind = "pods of namespace" // of whose claims somebody asks who uses them
)

// item names what is to be looked at.
type item struct {
	kind itemKind
	name types.NamespacedName
}

// compareItems orders items by kind and name.
func compareItems(a, b item) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.name.Namespace, b.name.Namespace), cmp.Compare(a.name.Name, b.name.Name))
}

// work hands out items: each to one worker at a time, and those that failed again after a while.
type work struct {
	queue  *workqueue.Queue[item]
	policy backoff.Policy

	mu       sync.Mutex
	busy     map[item]bool // true: look at it again afterwards
	failures map[item]failure
	awaited  map[item]struct{} // those of which await waits
	waiting  sync.WaitGroup    // the goroutines that wait for lost calls, and those of await
}

// failure is what became of the last attempts at an item.
type failure struct {
	count     int       // in a row, conflicts aside
	conflicts int       // since the last other failure
	uid       types.UID // of the object for which a plugin failed; empty when none did
	until     time.Time // when the plugin may be called again
}

func newWork(policy backoff.Policy) *work {
	return &work{queue: workqueue.New[item](), policy: policy, busy: map[item]bool{}, failures: map[item]failure{}, awaited: map[item]struct{}{}}
}

func (w *work) add(kind itemKind, name types.NamespacedName) { w.queue.Add(item{kind, name}) }

// addLater has key looked at again after the longest back-off.
func (w *work) addLater(key item) { w.queue.AddAt(key, time.Now().Add(w.policy.WithDefaults().Max)) }

// await has key looked at again when wait returns nil, and after the longest back-off when it returns an error. A key of which it
// waits already keeps that wait. Its goroutine ends when wait does, which must be soon after ctx has ended.
func (w *work) await(ctx context.Context, key item, wait func(ctx context.Context) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, waits := w.awaited[key]; waits {
		return
	}
	w.awaited[key] = struct{}{}
	w.waiting.Go(func() {
		err := wait(ctx)
		w.mu.Lock()
		delete(w.awaited, key)
		w.mu.Unlock()
		if err != nil {
			w.addLater(key)
			return
		}
		w.queue.Add(key)
	})
}

// stop ends every timer. All workers have ended, and so has their context.
func (w *work) stop() {
	w.queue.Stop()
	w.waiting.Wait()
}

// run is one worker. It returns when ctx has ended.
func (w *work) run(ctx context.Context, sync func(context.Context, item) error) {
	for {
		key, ok := w.queue.Get(ctx)
		if !ok {
			return
		}
		if w.take(key) {
			w.finish(ctx, key, sync(ctx, key))
		}
	}
}

// take reports whether key is this worker's now. If another worker has it, that one looks again.
func (w *work) take(key item) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, busy := w.busy[key]; busy {
		w.busy[key] = true
		return false
	}
	w.busy[key] = false
	return true
}

// isBusy reports whether a worker, or a call that was left behind, has key.
func (w *work) isBusy(key item) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, busy := w.busy[key]
	return busy
}

// finish gives key back. While a call that was left behind still runs, nobody gets the key: a second call must not begin
// beside it.
func (w *work) finish(ctx context.Context, key item, err error) {
	done := outcome.DoneOf(err)
	if done == nil {
		w.release(key, err)
		return
	}
	w.waiting.Go(func() {
		select {
		case <-done:
			w.release(key, err)
		case <-ctx.Done():
		}
	})
}

func (w *work) release(key item, err error) {
	w.mu.Lock()
	again := w.busy[key]
	delete(w.busy, key)
	at := w.count(key, err)
	w.mu.Unlock()
	if !at.IsZero() {
		w.queue.AddAt(key, at)
	}
	if again {
		w.queue.Add(key)
	}
}

// count keeps what became of key and returns when it is to be looked at again; zero means not by itself. w.mu is held.
func (w *work) count(key item, err error) time.Time {
	var held *heldError
	if errors.As(err, &held) {
		return held.until
	}
	if errors.Is(err, errAsked) {
		return time.Time{} // The answer comes, and it is no success either.
	}
	if err == nil {
		delete(w.failures, key)
		return time.Time{}
	}
	f := w.failures[key]
	var call *callError
	failed := errors.As(err, &call)
	if failed && f.uid != call.uid {
		f = failure{uid: call.uid}
	}
	at := time.Now()
	if !failed && errors.Is(err, store.ErrConflict) {
		f.conflicts++
		at = at.Add(backoff.Policy{Initial: conflictBackoff, Max: w.policy.Max, Jitter: w.policy.Jitter}.Delay(f.conflicts))
	} else {
		f.count, f.conflicts = f.count+1, 0
		at = at.Add(w.policy.Delay(f.count))
	}
	if failed {
		f.until = at
	}
	w.failures[key] = f
	return at
}

// heldError says that a plugin may not be called yet.
type heldError struct{ until time.Time }

func (e *heldError) Error() string {
	return "waits until " + e.until.Format(time.RFC3339) + " because the last attempt failed"
}

// held returns a [*heldError] while the back-off of the object of that UID lasts. A new object of the same name does not
// wait for the failures of the old one.
func (w *work) held(key item, uid types.UID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.failures[key]
	if f.uid != uid || !time.Now().Before(f.until) {
		return nil
	}
	return &heldError{until: f.until}
}
