// Package work is the queue of a controller: one worker at a time per item, and a retry of failed items after a
// back-off.
//
// # How an item is woken
//
// The events of an object queue the items that wait for it. A mirror reports the deletion of an object only if it has
// the object: no event reports an object that was created and deleted between two lists. So an item may wait for an
// object from the store only if the mirror has the object. Otherwise the item must be retried soon ([AwaitChange]). A
// worker reads the store first and the mirror second. A deletion that the mirror sees after that queues the item, even
// while the worker has it.
package work

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/backoff"
	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/internal/workqueue"
	"github.com/volumekit/volumekit/store"
)

// conflictBackoff is the first wait after a write conflict; it doubles.
const conflictBackoff = 5 * time.Millisecond

// Kind is the kind of an item's object.
type Kind string

// The kinds of items.
const (
	Claim     Kind = "claim"
	Volume    Kind = "volume"
	Pod       Kind = "pod"
	Namespace Kind = "pods of namespace" // whose pods are read from the store
	Volumes   Kind = "all volumes"       // which are read from the store; without a name
)

// Item names an object to sync.
type Item struct {
	// Kind is the kind of the object with that Name.
	Kind Kind
	Name types.NamespacedName
}

// Compare orders items by kind and name.
func Compare(a, b Item) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name.Namespace, b.Name.Namespace), cmp.Compare(a.Name.Name, b.Name.Name))
}

// Queue gives items to workers. Make it with [New]. Its methods may be called from several goroutines at once.
type Queue struct {
	queue  *workqueue.Queue[Item]
	policy backoff.Policy

	mu       sync.Mutex
	busy     map[Item]followUp // how to go on after the sync
	failures map[Item]failure
	after    map[Item][]Item   // those to queue after the sync of an item
	awaited  map[Item]struct{} // those for which Await waits
	waiting  sync.WaitGroup    // the goroutines that wait for abandoned calls, and those of Await
}

// followUp is what a queue does with an item when the worker that has it is done.
type followUp int

const (
	nothing     followUp = iota
	again                // sync it again
	againAtOnce          // sync it again, without the back-off of a plugin's failure
)

// failure is the result of the last attempts at an item.
type failure struct {
	count     int       // in a row, conflicts aside
	conflicts int       // since the last other failure
	uid       types.UID // of the object for which a plugin failed; empty when none did
	until     time.Time // when the plugin may be called again
}

// New returns an empty queue. Items that failed wait as policy says.
func New(policy backoff.Policy) *Queue {
	return &Queue{queue: workqueue.New[Item](), policy: policy, busy: map[Item]followUp{}, failures: map[Item]failure{}, after: map[Item][]Item{}, awaited: map[Item]struct{}{}}
}

// Add queues an item.
func (q *Queue) Add(kind Kind, name types.NamespacedName) { q.queue.Add(Item{kind, name}) }

// Retry queues an item at once, also during the back-off of a [CallError]: its cause may be gone.
func (q *Queue) Retry(item Item) {
	q.mu.Lock()
	if _, busy := q.busy[item]; busy {
		q.busy[item] = againAtOnce
	} else {
		q.endBackOff(item)
	}
	q.mu.Unlock()
	q.queue.Add(item)
}

// endBackOff ends the back-off of a plugin's failure. The next failure waits longer all the same. It needs q.mu.
func (q *Queue) endBackOff(item Item) {
	if f, failed := q.failures[item]; failed {
		f.until = time.Time{}
		q.failures[item] = f
	}
}

// AddLater queues an item after the longest back-off.
func (q *Queue) AddLater(item Item) { q.queue.AddAt(item, time.Now().Add(q.policy.WithDefaults().Max)) }

// Await queues an item when wait returns nil, and after the longest back-off when wait returns an error. It does
// nothing if it already waits for this item. Its goroutine ends when wait returns, which must be soon after the end of
// ctx.
func (q *Queue) Await(ctx context.Context, item Item, wait func(ctx context.Context) error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, waits := q.awaited[item]; waits {
		return
	}
	q.awaited[item] = struct{}{}
	q.waiting.Go(func() {
		err := wait(ctx)
		q.mu.Lock()
		delete(q.awaited, item)
		q.mu.Unlock()
		if err != nil {
			q.AddLater(item)
			return
		}
		q.queue.Add(item)
	})
}

// Stop ends every timer, and waits for the goroutines of the queue. The workers and their context must have ended.
func (q *Queue) Stop() {
	q.queue.Stop()
	q.waiting.Wait()
}

// RunWorkers runs n workers until ctx ends, and returns when all have ended. Each is one [Queue.Run].
func (q *Queue) RunWorkers(ctx context.Context, n int, do func(context.Context, Item) error) {
	var workers sync.WaitGroup
	for range n {
		workers.Go(func() { q.Run(ctx, do) })
	}
	workers.Wait()
}

// Run is one worker. It calls do with items, and returns when ctx has ended.
func (q *Queue) Run(ctx context.Context, do func(context.Context, Item) error) {
	for {
		item, ok := q.queue.Get(ctx)
		if !ok {
			return
		}
		if q.take(item) {
			q.finish(ctx, item, do(ctx, item))
		}
	}
}

// take reports whether this worker gets the item. If another worker has it, that one syncs it again.
func (q *Queue) take(item Item) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if next, busy := q.busy[item]; busy {
		q.busy[item] = max(next, again)
		return false
	}
	q.busy[item] = nothing
	return true
}

// IsBusy reports whether a worker, or an abandoned call, has the item.
func (q *Queue) IsBusy(item Item) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, busy := q.busy[item]
	return busy
}

// AwaitSync returns nil if neither a worker nor an abandoned call has the item other. Otherwise it returns an error, which is to be
// the result of item's sync, and item is queued after other's. The failures of item stay as they are.
func (q *Queue) AwaitSync(item, other Item) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, busy := q.busy[other]; !busy {
		return nil
	}
	if !slices.Contains(q.after[other], item) {
		q.after[other] = append(q.after[other], item)
	}
	return fmt.Errorf("%s %q: %w", other.Kind, other.Name, errBusy)
}

// finish ends the sync of an item. No worker gets the item while an abandoned call of it runs: no second call may start
// meanwhile.
func (q *Queue) finish(ctx context.Context, item Item, err error) {
	done := outcome.DoneOf(err)
	if done == nil {
		q.release(item, err)
		return
	}
	q.waiting.Go(func() {
		select {
		case <-done:
			q.release(item, err)
		case <-ctx.Done():
		}
	})
}

func (q *Queue) release(item Item, err error) {
	q.mu.Lock()
	next, after := q.busy[item], q.after[item]
	delete(q.busy, item)
	delete(q.after, item)
	at := q.count(item, err)
	if next == againAtOnce {
		q.endBackOff(item)
	}
	q.mu.Unlock()
	if !at.IsZero() {
		q.queue.AddAt(item, at)
	}
	if next != nothing {
		q.queue.Add(item)
	}
	q.queue.AddAll(after)
}

// count stores the result of a sync, and returns when to retry the item; zero means no retry. The caller holds q.mu.
func (q *Queue) count(item Item, err error) time.Time {
	var held *heldError
	if errors.As(err, &held) {
		return held.until
	}
	if errors.Is(err, ErrAwaited) || errors.Is(err, errBusy) {
		return time.Time{} // It is neither a success nor a failure.
	}
	if err == nil {
		delete(q.failures, item)
		return time.Time{}
	}
	f := q.failures[item]
	var call *CallError
	failed := errors.As(err, &call)
	if failed && f.uid != call.UID {
		f = failure{uid: call.UID}
	}
	at := time.Now()
	if !failed && errors.Is(err, store.ErrConflict) {
		f.conflicts++
		at = at.Add(backoff.Policy{Initial: conflictBackoff, Max: q.policy.Max, Jitter: q.policy.Jitter}.Delay(f.conflicts))
	} else {
		f.count, f.conflicts = f.count+1, 0
		at = at.Add(q.policy.Delay(f.count))
	}
	if failed {
		f.until = at
	}
	q.failures[item] = f
	return at
}

// CheckBackoff returns an error during the back-off after a [CallError] about the object of that UID. A new object of
// the same name has no back-off.
func (q *Queue) CheckBackoff(item Item, uid types.UID) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.failures[item]
	if f.uid != uid || !time.Now().Before(f.until) {
		return nil
	}
	return &heldError{until: f.until}
}
