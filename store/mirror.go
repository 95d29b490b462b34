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

// Mirror is what was last seen of one kind of object: a list and the watch that follows it. Reads cost no I/O. Make it with
// [NewMirror] and keep it true with Follow. Its objects are shared and must not be changed: copy what is to be written. All
// methods may be called from several goroutines at once.
type Mirror[T Object] struct {
	store   Store
	options MirrorOptions
	synced  chan struct{} // closed after the first list

	mu      sync.RWMutex
	items   map[types.NamespacedName]T
	indexes []index[T]
	version string // of the newest event or list that was applied
	listing bool   // a list is on its way
	late    []T    // what was put meanwhile: the list may not know it
}

// MirrorOptions are the options of a [Mirror], and of [Follow]. The zero value is useful.
type MirrorOptions struct {
	// Logger gets why the store is read again; nil discards it.
	Logger *slog.Logger
	// InitialBackoff is the wait after a read that failed; it doubles with each failure in a row, up to MaxBackoff. Zero
	// means half a second, and two minutes and two seconds.
	InitialBackoff, MaxBackoff time.Duration
	// Jitter is the greatest part of a wait that is left out at random, between 0 and 1; zero means 0.1, less than zero none.
	Jitter float64
}

// NewMirror returns a mirror of the objects of type T in s, empty until Follow runs. It does no I/O.
func NewMirror[T Object](s Store, options MirrorOptions) *Mirror[T] {
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	return &Mirror[T]{store: s, options: options, synced: make(chan struct{}), items: map[types.NamespacedName]T{}}
}

// NameOf returns the namespace and name of obj, under which a mirror has it.
func NameOf(obj Object) types.NamespacedName {
	return types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}
}

// WaitSynced waits for the first list, and reports whether it came before ctx ended.
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

// Get returns one object, and false when there is none of that name.
func (m *Mirror[T]) Get(name types.NamespacedName) (T, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	obj, ok := m.items[name]
	return obj, ok
}

// All returns every object, in the order of their names.
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

// Follow keeps the mirror true until ctx ends, and calls changed for each object that is new, changed or gone, with the
// object as it is or as it was last; Get tells which. It lists again whenever the watch ends, also when the store has
// compacted what the watch needs, after a pause when that was soon. Call it once.
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

// beginList has the mirror remember what is put from now on.
func (m *Mirror[T]) beginList() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listing, m.late = true, nil
}

// replace makes a list the whole truth, but for what was put after it, and returns the objects that are new, changed or gone.
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

// apply adds one event. What Put has added since stays when it is newer.
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

// set makes obj the object of its name. m.mu is held.
func (m *Mirror[T]) set(obj T) {
	name := NameOf(obj)
	m.unset(name)
	m.items[name] = obj
	for _, x := range m.indexes {
		x.add(name, obj)
	}
}

// unset takes out the object of a name, if there is one. m.mu is held.
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
