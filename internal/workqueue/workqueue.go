package workqueue

import (
	"context"
	"sync"
	"time"
)

// Queue is a first-in first-out queue in which a key waits at most once. Its methods may be called from several goroutines at
// once. Only Get blocks.
type Queue[K comparable] struct {
	mu      sync.Mutex
	order   []K
	waiting map[K]struct{}
	timers  map[K]*timer
	stopped bool

	// ready holds a token when order may not be empty.
	ready chan struct{}
}

// timer queues a key at a time.
type timer struct {
	at   time.Time
	stop func() bool
}

// New returns an empty queue.
func New[K comparable]() *Queue[K] {
	return &Queue[K]{
		waiting: make(map[K]struct{}),
		timers:  make(map[K]*timer),
		ready:   make(chan struct{}, 1),
	}
}

// Add queues key, unless the key already waits. It does nothing after Stop.
func (q *Queue[K]) Add(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.add(key)
}

// AddAll queues each key in order, as Add does.
func (q *Queue[K]) AddAll(keys []K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, key := range keys {
		q.add(key)
	}
}

func (q *Queue[K]) add(key K) {
	if _, ok := q.waiting[key]; ok || q.stopped {
		return
	}
	q.waiting[key] = struct{}{}
	q.order = append(q.order, key)
	q.signal()
}

// AddAt queues key at a time; a time in the past means now. If the key already has an earlier time, it keeps that. AddAt does
// nothing after Stop.
func (q *Queue[K]) AddAt(key K, at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	wait := time.Until(at)
	if wait <= 0 {
		q.add(key)
		return
	}
	if old, ok := q.timers[key]; ok {
		if !at.Before(old.at) {
			return
		}
		old.stop()
	}
	if q.stopped {
		return
	}
	t := &timer{at: at}
	t.stop = time.AfterFunc(wait, func() { q.due(key, t) }).Stop
	q.timers[key] = t
}

// due queues the key of a timer, unless another timer has replaced it.
func (q *Queue[K]) due(key K, t *timer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.timers[key] != t {
		return
	}
	delete(q.timers, key)
	q.add(key)
}

// Get waits for a key and takes it. It returns false if ctx has ended. The remaining keys stay in the queue.
func (q *Queue[K]) Get(ctx context.Context) (key K, ok bool) {
	for ctx.Err() == nil {
		if key, ok = q.take(); ok {
			return key, true
		}
		select {
		case <-ctx.Done():
			return key, false
		case <-q.ready:
		}
	}
	q.signal() // The token may have been taken: another Get must look.
	return key, false
}

func (q *Queue[K]) take() (key K, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.order) == 0 {
		return key, false
	}
	key = q.order[0]
	q.order = q.order[1:]
	if len(q.order) == 0 {
		q.order = nil
	}
	delete(q.waiting, key)
	if len(q.order) > 0 {
		q.signal()
	}
	return key, true
}

// signal wakes one waiting Get. That one wakes the next while there are keys.
func (q *Queue[K]) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// Len returns the number of keys that wait, without those of a later time.
func (q *Queue[K]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.order)
}

// Stop ends every timer and makes the queue refuse new keys.
func (q *Queue[K]) Stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopped = true
	for key, t := range q.timers {
		t.stop()
		delete(q.timers, key)
	}
}
