package persistentvolume

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/volumekit/volumekit/internal/backoff"
	"github.com/volumekit/volumekit/store"
)

// mirror is what was last seen of one kind. Its objects are shared and never changed.
type mirror[T store.Object] struct {
	mu      sync.RWMutex
	items   map[types.NamespacedName]T
	version string        // of the newest event or list that was applied
	synced  chan struct{} // closed after the first list
}

func newMirror[T store.Object]() *mirror[T] {
	return &mirror[T]{items: map[types.NamespacedName]T{}, synced: make(chan struct{})}
}

// nameOf returns the namespace and name of obj.
func nameOf(obj store.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}
}

// await waits for the first list, and reports whether it came before ctx ended.
func (m *mirror[T]) await(ctx context.Context) bool {
	select {
	case <-m.synced:
		return true
	case <-ctx.Done():
		return false
	}
}

func (m *mirror[T]) get(name types.NamespacedName) (T, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	obj, ok := m.items[name]
	return obj, ok
}

// all returns every object, in no order.
func (m *mirror[T]) all() []T {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.Collect(maps.Values(m.items))
}

// put adds what this controller has just written, so that the next decision knows it before the watch tells. It does
// nothing where the watch has told it already, or where versions cannot be compared.
func (m *mirror[T]) put(obj T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if newer(obj.GetResourceVersion(), m.version) {
		m.items[nameOf(obj)] = obj
	}
}

// newer reports whether version a is known to come after b.
func newer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}

// replace makes a list the whole truth and returns the objects that are new, changed or gone.
func (m *mirror[T]) replace(items []T, version string) (changed []T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.items
	m.items, m.version = make(map[types.NamespacedName]T, len(items)), version
	for _, obj := range items {
		m.items[nameOf(obj)] = obj
		changed = append(changed, obj)
	}
	for name, obj := range old {
		if now, ok := m.items[name]; !ok || now.GetUID() != obj.GetUID() {
			changed = append(changed, obj)
		}
	}
	return changed
}

// apply adds one event. What put has added since stays when it is newer.
func (m *mirror[T]) apply(event store.Event, obj T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.version = obj.GetResourceVersion()
	if old, ok := m.items[nameOf(obj)]; ok && newer(old.GetResourceVersion(), m.version) {
		return
	}
	if event.Type == store.Deleted {
		delete(m.items, nameOf(obj))
		return
	}
	m.items[nameOf(obj)] = obj
}

// follow keeps m true until ctx ends, and calls changed for each object that is new, changed or gone. It lists again
// whenever the watch ends, after a pause when that was soon.
func follow[T store.Object](ctx context.Context, c *Controller, m *mirror[T], changed func(T)) {
	failures := 0
	policy := backoff.Policy{Initial: c.options.InitialBackoff, Max: c.options.MaxBackoff}.WithDefaults()
	synced := sync.OnceFunc(func() { close(m.synced) })
	for ctx.Err() == nil {
		began := time.Now()
		err := followOnce(ctx, c.store, m, changed, synced)
		if err == nil && time.Since(began) >= policy.Initial {
			failures = 0
			continue
		}
		failures++
		if err != nil && ctx.Err() == nil {
			c.options.Logger.WarnContext(ctx, "reading the store will be tried again", "err", err)
		}
		pause(ctx, policy.Delay(failures))
	}
}

// followOnce lists and watches until the watch ends, which is no error.
func followOnce[T store.Object](ctx context.Context, s store.Store, m *mirror[T], changed func(T), synced func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var zero T
	kind, err := store.KindOf(zero)
	if err != nil {
		return err
	}
	items, version, err := store.ListOf[T](ctx, s, "")
	if err != nil {
		return err
	}
	events, err := s.Watch(ctx, kind, "", version)
	if err != nil {
		return err
	}
	for _, obj := range m.replace(items, version) {
		changed(obj)
	}
	synced()
	for event := range events {
		if obj, ok := event.Object.(T); ok {
			m.apply(event, obj)
			changed(obj)
		}
	}
	return nil
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
