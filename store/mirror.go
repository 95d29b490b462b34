package store

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// Mirror is a copy in memory of the objects of one kind: a list, and the watch that follows it. Reads do no I/O. Make it with
// [NewMirror], and keep it up to date with Follow. Its objects are shared and must not be changed: copy an object before you write it.
// All methods may be called from several goroutines at once.
type Mirror[T Object] struct {
	store   Store
	options MirrorOptions
	synced  chan struct{} // closed after the first list

	mu      sync.RWMutex
	items   map[types.NamespacedName]T
	indexes []index[T]
	version string // of the newest event or list that was applied
	listing bool   // a list runs
	late    []T    // objects that were put meanwhile: the list may not have them
}

// MirrorOptions are the options of a [Mirror], and of [Follow]. The zero value is useful.
type MirrorOptions struct {
	// Logger logs why the store is read again; nil discards that.
	Logger *slog.Logger
	// InitialBackoff is the wait after a failed read. It doubles with each failure in a row, up to MaxBackoff. Zero means half a
	// second for InitialBackoff, and two minutes and two seconds for MaxBackoff.
	InitialBackoff, MaxBackoff time.Duration
	// Jitter is the largest part by which a wait is shortened at random, between 0 and 1. Zero means 0.1; a negative value means none.
	Jitter float64
}

// NewMirror returns a mirror of the objects of type T in s, empty until Follow runs. It does no I/O.
func NewMirror[T Object](s Store, options MirrorOptions) *Mirror[T] {
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	return &Mirror[T]{store: s, options: options, synced: make(chan struct{}), items: map[types.NamespacedName]T{}}
}

// NameOf returns the namespace and name of obj, its key in a mirror.
func NameOf(obj Object) types.NamespacedName {
	return types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}
}

// WaitSynced waits for the first list. It returns false if ctx ends first.
func (m *Mirror[T]) WaitSynced(ctx context.Context) bool {
	select {
	case <-m.synced:
		return true
	case <-ctx.Done():
		return false
	}
}

// HasSynced reports whether the first list has come. Until then an object that the mirror does not have may be in the store.
func (m *Mirror[T]) HasSynced() bool {
	select {
	case <-m.synced:
		return true
	default:
		return false
	}
}

// Get returns one object; false if there is none with that name.
func (m *Mirror[T]) Get(name types.NamespacedName) (T, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	obj, ok := m.items[name]
	return obj, ok
}

// All returns all objects, sorted by name.
func (m *Mirror[T]) All() []T {
	m.mu.RLock()
	objects := slices.Collect(maps.Values(m.items))
	m.mu.RUnlock()
	sortByName(objects)
	return objects
}

// sortByName sorts objects by namespace and name, so every loop over them has the same order.
func sortByName[T Object](objects []T) {
	slices.SortFunc(objects, func(a, b T) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
}

// Put adds an object that the caller has just written, so its next decision knows the object before the watch reports it.
// It does nothing if the watch has reported it already, or if versions cannot be compared.
func (m *Mirror[T]) Put(obj T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !newer(obj.GetResourceVersion(), m.version) {
		return
	}
	m.set(obj)
	if m.listing {
		m.late = append(m.late, obj)
	}
}

// newer reports whether version a is known to come after b.
func newer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}

// Follow keeps the mirror up to date until ctx ends. It calls changed for each object that is new, changed or deleted, with its present
// or last version. Get tells whether the object still exists. Follow lists again whenever the watch ends, also because the store has
// compacted the events that the watch needs. If a watch ends soon, Follow pauses before. Call it once.
func (m *Mirror[T]) Follow(ctx context.Context, changed func(T)) {
	synced := sync.OnceFunc(func() { close(m.synced) })
	follow(ctx, m.store, m.options, follower[T]{
		beginList: m.beginList,
		listed: func(items []T, version string) {
			for _, obj := range m.replace(items, version) {
				changed(obj)
			}
			synced()
		},
		changed: func(event EventType, obj T) {
			m.apply(event, obj)
			changed(obj)
		},
	})
}

// beginList makes the mirror remember the objects that are put from now on.
func (m *Mirror[T]) beginList() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listing, m.late = true, nil
}

// replace replaces the content by a list, except the objects that were put since. It returns the objects that are new, changed or
// deleted.
func (m *Mirror[T]) replace(items []T, version string) (changed []T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.items
	m.items, m.version = make(map[types.NamespacedName]T, len(items)), version
	for _, x := range m.indexes {
		x.clear()
	}
	for _, obj := range items {
		m.set(obj)
		changed = append(changed, obj)
	}
	for _, obj := range m.late {
		if newer(obj.GetResourceVersion(), version) {
			m.set(obj)
		}
	}
	m.listing, m.late = false, nil
	var gone []T
	for name, obj := range old {
		if now, ok := m.items[name]; !ok || now.GetUID() != obj.GetUID() {
			gone = append(gone, obj)
		}
	}
	sortByName(gone)
	return append(changed, gone...)
}

// apply applies one event. A newer object from Put stays.
func (m *Mirror[T]) apply(event EventType, obj T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.version = obj.GetResourceVersion()
	if old, ok := m.items[NameOf(obj)]; ok && newer(old.GetResourceVersion(), m.version) {
		return
	}
	if event == Deleted {
		m.unset(NameOf(obj))
		return
	}
	m.set(obj)
}

// set stores obj under its name. The caller holds m.mu.
func (m *Mirror[T]) set(obj T) {
	name := NameOf(obj)
	m.unset(name)
	m.items[name] = obj
	for _, x := range m.indexes {
		x.add(name, obj)
	}
}

// unset removes the object with a name, if there is one. The caller holds m.mu.
func (m *Mirror[T]) unset(name types.NamespacedName) {
	old, ok := m.items[name]
	if !ok {
		return
	}
	delete(m.items, name)
	for _, x := range m.indexes {
		x.remove(name, old)
	}
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
