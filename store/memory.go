package store

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// defaultHistory is how many writes per kind a [Memory] remembers unless told otherwise.
const defaultHistory = 4096

// MemoryOptions are the options of [NewMemory]. The zero value is useful.
type MemoryOptions struct {
	// History is how many writes per kind are remembered for watches; 0 means 4,096. A watch that falls
	// further behind is closed, and cannot be resumed.
	History int
	// Kinds are the kinds that the store keeps; nil means those of [Kinds].
	Kinds *KindTable
}

// Memory is a [Store] and a [Transactor] in the memory of this process. It keeps nothing beyond it. Make one with [NewMemory].
//
// Writers never wait for watches: a watch reads the history at its own pace, in a goroutine that ends with the context
// of the watch or when the history no longer reaches back to where the watch is.
type Memory struct {
	history int
	table   *KindTable

	mu      sync.Mutex // never held over a copy, a channel send or a call that could wait
	version uint64     // of the last write
	kinds   map[schema.GroupVersionKind]*memoryKind
}

var _ Transactor = (*Memory)(nil)

// memoryKind is all that a Memory knows of one kind. Guarded by Memory.mu; the objects in it are never changed.
type memoryKind struct {
	objects map[Key]Object
	log     memoryLog
}

// NewMemory returns an empty store. It starts nothing.
func NewMemory(options MemoryOptions) *Memory {
	m := &Memory{history: options.History, table: options.Kinds, kinds: map[schema.GroupVersionKind]*memoryKind{}}
	if m.history <= 0 {
		m.history = defaultHistory
	}
	for _, kind := range options.Kinds.Kinds() {
		m.kinds[kind] = &memoryKind{objects: map[Key]Object{}, log: memoryLog{limit: m.history}}
	}
	return m
}

// Kinds returns the kinds that the store keeps.
func (m *Memory) Kinds() *KindTable { return m.table }

// Get implements [Store].
func (m *Memory) Get(ctx context.Context, key Key) (runtime.Object, error) {
	if err := m.ready(ctx, key); err != nil {
		return nil, err
	}
	m.mu.Lock()
	obj, ok := m.kinds[key.Kind].objects[key]
	m.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("%s: %w", key, ErrNotFound)
	}
	return obj.DeepCopyObject(), nil
}

// Create implements [Store].
func (m *Memory) Create(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	return commitOne(ctx, m, ToCreate(obj))
}

// Update implements [Store].
func (m *Memory) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	return commitOne(ctx, m, ToUpdate(obj))
}

// Delete implements [Store].
func (m *Memory) Delete(ctx context.Context, key Key, preconditions Preconditions) error {
	_, err := commitOne(ctx, m, ToDelete(key, preconditions))
	return err
}

// commitOne does one write.
func commitOne(ctx context.Context, s Transactor, w Write) (runtime.Object, error) {
	objects, err := s.Commit(ctx, Transaction{Writes: []Write{w}})
	if err != nil {
		return nil, err
	}
	return objects[0], nil
}

// Commit implements [Transactor].
func (m *Memory) Commit(ctx context.Context, t Transaction) ([]runtime.Object, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	plan, err := m.table.NewTransactionPlan(t)
	if err != nil {
		return nil, err
	}
	keys := plan.Keys()
	for {
		found := m.find(keys)
		changes, err := plan.Changes(found)
		if err != nil {
			return nil, err
		}
		if m.swap(keys, found, changes) {
			return copies(changes), nil
		}
	}
}

// copies returns copies of what was written.
func copies(changes []PlannedWrite) []runtime.Object {
	objects := make([]runtime.Object, 0, len(changes))
	for _, c := range changes {
		objects = append(objects, c.Object.DeepCopyObject())
	}
	return objects
}

// find returns the objects of keys as they were at one moment.
func (m *Memory) find(keys []Key) []Object {
	found := make([]Object, len(keys))
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, key := range keys {
		found[i] = m.kinds[key.Kind].objects[key]
	}
	return found
}

// swap writes changes if what was found is still what is stored.
func (m *Memory) swap(keys []Key, found []Object, changes []PlannedWrite) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, key := range keys {
		if m.kinds[key.Kind].objects[key] != found[i] {
			return false
		}
	}
	for _, c := range changes {
		if c.Event != "" {
			m.write(c.Key, c.Event, c.Object)
		}
	}
	return true
}

// write gives obj the next version and publishes it. No other code holds obj yet. Memory.mu is held.
func (m *Memory) write(key Key, event EventType, obj Object) {
	m.version++
	obj.SetResourceVersion(strconv.FormatUint(m.version, 10))
	kind := m.kinds[key.Kind]
	if event == Deleted {
		delete(kind.objects, key)
	} else {
		kind.objects[key] = obj
	}
	kind.log.append(memoryWrite{version: m.version, event: event, object: obj})
}

// List implements [Store].
func (m *Memory) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (List, error) {
	if err := m.readyKind(ctx, kind); err != nil {
		return List{}, err
	}
	type item struct {
		key Key
		obj Object
	}
	var items []item
	m.mu.Lock()
	version := m.version
	for key, obj := range m.kinds[kind].objects {
		if namespace == "" || key.Namespace == namespace {
			items = append(items, item{key, obj})
		}
	}
	m.mu.Unlock()
	slices.SortFunc(items, func(a, b item) int {
		if c := strings.Compare(a.key.Namespace, b.key.Namespace); c != 0 {
			return c
		}
		return strings.Compare(a.key.Name, b.key.Name)
	})
	list := List{Items: make([]runtime.Object, 0, len(items)), ResourceVersion: strconv.FormatUint(version, 10)}
	for _, i := range items {
		list.Items = append(list.Items, i.obj.DeepCopyObject())
	}
	return list, nil
}

func (m *Memory) ready(ctx context.Context, key Key) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return m.table.ValidateKey(key)
}

func (m *Memory) readyKind(ctx context.Context, kind schema.GroupVersionKind) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	_, err := m.table.Namespaced(kind)
	return err
}
