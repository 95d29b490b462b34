package store

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// watchBatch is how many writes a watch takes out of the history at a time.
const watchBatch = 64

// memoryWrite is one write in the history. Its object is never changed.
type memoryWrite struct {
	version uint64
	event   EventType
	object  Object
}

// memoryLog is the history of one kind: the last writes, oldest first. Guarded by Memory.mu.
type memoryLog struct {
	limit     int
	writes    []memoryWrite
	forgotten uint64        // version of the newest write that was dropped
	grown     chan struct{} // closed by the next append; nil while no watch waits
}

// append adds a write and drops the oldest beyond twice the limit, so that dropping costs nothing on average.
func (l *memoryLog) append(w memoryWrite) {
	l.writes = append(l.writes, w)
	if len(l.writes) >= 2*l.limit {
		drop := len(l.writes) - l.limit
		l.forgotten = l.writes[drop-1].version
		l.writes = slices.Clone(l.writes[drop:])
	}
	if l.grown != nil {
		close(l.grown)
		l.grown = nil
	}
}

// after returns at most watchBatch writes after version, and when there is none, a channel that is closed by the next
// one. It reports false when writes after version were dropped.
func (l *memoryLog) after(version uint64) (writes []memoryWrite, grown <-chan struct{}, ok bool) {
	if version < l.forgotten {
		return nil, nil, false
	}
	first := sort.Search(len(l.writes), func(i int) bool { return l.writes[i].version > version })
	if first < len(l.writes) {
		return slices.Clone(l.writes[first:min(first+watchBatch, len(l.writes))]), nil, true
	}
	if l.grown == nil {
		l.grown = make(chan struct{})
	}
	return nil, l.grown, true
}

// Watch implements [Store]. The goroutine behind the channel ends, and closes it, when ctx ends or when the receiver is
// so far behind that the history no longer reaches back to it.
func (m *Memory) Watch(ctx context.Context, kind schema.GroupVersionKind, namespace, version string) (<-chan Event, error) {
	if err := m.readyKind(ctx, kind); err != nil {
		return nil, err
	}
	from, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("version %q is none of this store: pass that of a list: %w", version, ErrInvalid)
	}
	m.mu.Lock()
	tooOld, tooNew := from < m.kinds[kind].log.forgotten, from > m.version
	m.mu.Unlock()
	if tooOld || tooNew {
		return nil, fmt.Errorf("watch of %s from version %s: %w", kind.Kind, version, ErrCompacted)
	}
	w := &memoryWatch{store: m, kind: kind, namespace: namespace, at: from, events: make(chan Event)}
	go w.run(ctx)
	return w.events, nil
}

// memoryWatch is one watch; its goroutine owns it.
type memoryWatch struct {
	store     *Memory
	kind      schema.GroupVersionKind
	namespace string
	at        uint64 // version of the last write that was looked at
	events    chan Event
}

func (w *memoryWatch) run(ctx context.Context) {
	defer close(w.events)
	for ctx.Err() == nil {
		w.store.mu.Lock()
		writes, grown, ok := w.store.kinds[w.kind].log.after(w.at)
		w.store.mu.Unlock()
		if !ok || !w.send(ctx, writes) {
			return
		}
		if grown == nil {
			continue
		}
		select {
		case <-ctx.Done():
		case <-grown:
		}
	}
}

// send reports false when ctx ended.
func (w *memoryWatch) send(ctx context.Context, writes []memoryWrite) bool {
	for _, write := range writes {
		w.at = write.version
		if w.namespace != "" && write.object.GetNamespace() != w.namespace {
			continue
		}
		select {
		case <-ctx.Done():
			return false
		case w.events <- Event{Type: write.event, Object: write.object.DeepCopyObject()}:
		}
	}
	return true
}
