package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/volumekit/volumekit/store"
)

// remembered is how many writes of a kind are kept for the watches that an informer feeds.
const remembered = 4096

// errStopped says that an informer tells nothing any more.
var errStopped = errors.New("its informer has stopped")

// feed gives to any number of watches what one informer tells. The informer's goroutine for this handler writes the log; each watch
// has one that reads it at its own pace.
type feed struct {
	kinds    *store.KindTable
	kind     schema.GroupVersionKind
	informer cache.SharedInformer

	mu     sync.Mutex // never held over a copy or a channel send; adding the handler, under it, calls no handler
	synced func() bool
	// log has what was told after version start; the first is the number first. Both become greater when it grows too long.
	log          []told
	first, start uint64
	last         uint64        // the newest version that was told
	breaks       int           // how often the informer has listed again, so that something may be missing in between
	grown        chan struct{} // closed when there is more; nil while no watch waits
}

// told is one event of an informer. Its object is shared, and is not changed.
type told struct {
	version uint64
	event   store.EventType
	object  store.Object
}

// ready has the log begin, and returns when the informer has listed. What a list of the API server finds after that is continued by
// the log.
func (f *feed) ready(ctx context.Context) error {
	f.mu.Lock()
	if f.synced == nil {
		handler, err := f.informer.AddEventHandler(f)
		if err != nil {
			f.mu.Unlock()
			return fmt.Errorf("informer of %s: %w", f.kind.Kind, err)
		}
		f.synced = handler.HasSynced
	}
	synced := f.synced
	f.mu.Unlock()
	if f.informer.IsStopped() {
		return fmt.Errorf("%s: %w", f.kind.Kind, errStopped)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced) {
		return fmt.Errorf("the informer of %s has not listed yet: is it started? %w", f.kind.Kind, context.Cause(ctx))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.start == 0 {
		f.begin()
	}
	return nil
}

// begin has the log begin where the informer is. f.mu is held.
func (f *feed) begin() {
	f.first += uint64(len(f.log))
	f.log = nil
	f.start = max(f.start, f.last, numberOf(f.informer.LastSyncResourceVersion()))
}

// OnAdd implements cache.ResourceEventHandler.
func (f *feed) OnAdd(obj any, inList bool) { //nolint:revive // The method is client-go's.
	if added, ok := obj.(store.Object); ok && !inList {
		f.add(store.Added, added)
	}
}

// OnUpdate implements cache.ResourceEventHandler.
func (f *feed) OnUpdate(before, after any) {
	old, known := before.(store.Object)
	updated, ok := after.(store.Object)
	switch {
	case !ok || !known || old.GetResourceVersion() == updated.GetResourceVersion(): // A resync tells nothing.
	case old.GetUID() != updated.GetUID():
		f.interrupt() // The end of the old one was missed.
	default:
		f.add(store.Modified, updated)
	}
}

// OnDelete implements cache.ResourceEventHandler.
func (f *feed) OnDelete(obj any) {
	if deleted, ok := obj.(store.Object); ok {
		f.add(store.Deleted, deleted)
	} else {
		f.interrupt() // The informer found it gone when it listed again.
	}
}

// add writes the log. Versions grow, but when the informer has listed again.
func (f *feed) add(event store.EventType, obj store.Object) {
	version := numberOf(obj.GetResourceVersion())
	f.mu.Lock()
	defer f.mu.Unlock()
	if version <= f.last {
		f.interrupted()
		return
	}
	f.last = version
	f.log = append(f.log, told{version, event, obj})
	if len(f.log) >= 2*remembered {
		drop := len(f.log) - remembered
		f.start = max(f.start, f.log[drop-1].version)
		f.log = slices.Clone(f.log[drop:])
		f.first += uint64(drop)
	}
	f.wake()
}

// interrupt ends all watches: something was missed.
func (f *feed) interrupt() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.interrupted()
}

// interrupted is interrupt with f.mu held.
func (f *feed) interrupted() {
	f.breaks++
	f.begin()
	f.wake()
}

func (f *feed) wake() {
	if f.grown != nil {
		close(f.grown)
		f.grown = nil
	}
}

// watch returns what is told after a version; nil when that is before the log begins.
func (f *feed) watch(ctx context.Context, namespace, version string) (<-chan store.Event, error) {
	if err := f.ready(ctx); err != nil {
		return nil, err
	}
	after := numberOf(version)
	f.mu.Lock()
	defer f.mu.Unlock()
	if after < f.start {
		return nil, nil
	}
	r := reader{feed: f, namespace: namespace, after: after, next: f.first, breaks: f.breaks, events: make(chan store.Event)}
	go r.run(ctx)
	return r.events, nil
}

// reader is one watch; its goroutine owns it.
type reader struct {
	feed      *feed
	namespace string
	after     uint64 // the version that it began after
	next      uint64 // the number of what is to be told next
	breaks    int
	events    chan store.Event
}

func (r *reader) run(ctx context.Context) {
	defer close(r.events)
	for ctx.Err() == nil {
		batch, grown, ok := r.take()
		if !ok {
			return
		}
		for _, t := range batch {
			if !r.tell(ctx, t) {
				return
			}
		}
		if len(batch) > 0 {
			continue
		}
		select {
		case <-grown:
		case <-ctx.Done():
		}
	}
}

// take returns what is to be told next, and a channel that is closed when there is more. It reports false when something is missing.
func (r *reader) take() ([]told, <-chan struct{}, bool) {
	f := r.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.breaks != f.breaks || r.next < f.first {
		return nil, nil, false
	}
	if f.grown == nil {
		f.grown = make(chan struct{})
	}
	batch := f.log[r.next-f.first:]
	r.next += uint64(len(batch))
	return slices.Clip(batch), f.grown, true
}

func (r *reader) tell(ctx context.Context, t told) bool {
	if t.version <= r.after || r.namespace != "" && t.object.GetNamespace() != r.namespace {
		return true
	}
	obj, err := received(r.feed.kinds, copyOf(t.object), nil)
	if err != nil {
		return false
	}
	select {
	case r.events <- store.Event{Type: t.event, Object: obj}:
		return true
	case <-ctx.Done():
		return false
	}
}

// numberOf returns a version as a number; zero for none.
func numberOf(version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
