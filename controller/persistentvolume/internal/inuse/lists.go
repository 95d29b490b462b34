package inuse

import (
	"context"
	"sync"

	"github.com/volumekit/volumekit/store"
)

// lists reads all objects of a kind from the store. Each caller gets a list that began after its call. Callers that
// come during a list share the next one: a thousand calls at once cost two lists. The objects must not be changed. Its
// methods may be called from several goroutines at once.
type lists[T store.Object] struct {
	store store.Store

	mu   sync.Mutex // not held during I/O
	last map[string]*list[T]
}

// list is one list of the objects of a namespace.
type list[T store.Object] struct {
	begun bool // lists.mu guards it
	done  chan struct{}
	items []T
	err   error
}

func newLists[T store.Object](s store.Store) *lists[T] {
	return &lists[T]{store: s, last: map[string]*list[T]{}}
}

// all returns the objects of a namespace; "" means all.
func (l *lists[T]) all(ctx context.Context, namespace string) ([]T, error) {
	l.mu.Lock()
	before := l.last[namespace]
	next, mine := before, before == nil || before.begun
	if mine {
		next = &list[T]{done: make(chan struct{})}
		l.last[namespace] = next
	}
	l.mu.Unlock()
	if mine {
		l.read(ctx, namespace, before, next)
		return next.items, next.err
	}
	select {
	case <-next.done:
		return next.items, next.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// read reads next after the end of before, which may be nil.
func (l *lists[T]) read(ctx context.Context, namespace string, before, next *list[T]) {
	defer close(next.done)
	if before != nil {
		select {
		case <-before.done:
		case <-ctx.Done():
		}
	}
	l.mu.Lock()
	next.begun = true
	l.mu.Unlock()
	next.items, _, next.err = store.ListOf[T](ctx, l.store, namespace)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last[namespace] == next {
		delete(l.last, namespace)
	}
}
