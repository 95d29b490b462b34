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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DefaultHistory is how many writes per kind a [Memory] remembers unless told otherwise.
const DefaultHistory = 4096

// MemoryOptions are the options of [NewMemory]. The zero value is useful.
type MemoryOptions struct {
	// History is how many writes per kind are remembered for watches; 0 means [DefaultHistory]. A watch that falls
	// further behind is closed, and cannot be resumed.
	History int
}

// Memory is a [Store] in the memory of this process. It keeps nothing beyond it. Make one with [NewMemory].
//
// Writers never wait for watches: a watch reads the history at its own pace, in a goroutine that ends with the context
// of the watch or when the history no longer reaches back to where the watch is.
type Memory struct {
	history int

	mu      sync.Mutex // never held over a copy, a channel send or a call that could wait
	version uint64     // of the last write
	kinds   map[schema.GroupVersionKind]*memoryKind
}

var _ Store = (*Memory)(nil)

// memoryKind is all that a Memory knows of one kind. Guarded by Memory.mu; the objects in it are never changed.
type memoryKind struct {
	objects map[Key]Object
	log     memoryLog
}

// NewMemory returns an empty store. It starts nothing.
func NewMemory(options MemoryOptions) *Memory {
	m := &Memory{history: options.History, kinds: map[schema.GroupVersionKind]*memoryKind{}}
	if m.history <= 0 {
		m.history = DefaultHistory
	}
	for _, kind := range Kinds() {
		m.kinds[kind] = &memoryKind{objects: map[Key]Object{}, log: memoryLog{limit: m.history}}
	}
	return m
}

// Get implements [Store].
func (m *Memory) Get(ctx context.Context, key Key) (runtime.Object, error) {
	if err := ready(ctx, key); err != nil {
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
	key, copied, err := accept(ctx, obj)
	if err != nil {
		return nil, err
	}
	if copied.GetResourceVersion() != "" {
		return nil, fmt.Errorf("%s has a resource version already: take it away, or update: %w", key, ErrInvalid)
	}
	prepareNew(copied)
	if err := m.insert(key, copied); err != nil {
		return nil, err
	}
	return copied.DeepCopyObject(), nil
}

func (m *Memory) insert(key Key, obj Object) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, exists := m.kinds[key.Kind].objects[key]; exists {
		return fmt.Errorf("%s: %w", key, ErrAlreadyExists)
	}
	m.write(key, Added, obj)
	return nil
}

// Update implements [Store].
func (m *Memory) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	key, copied, err := accept(ctx, obj)
	if err != nil {
		return nil, err
	}
	if copied.GetResourceVersion() == "" {
		return nil, fmt.Errorf("%s has no resource version: read it before you update it: %w", key, ErrInvalid)
	}
	if err := m.replace(key, copied); err != nil {
		return nil, err
	}
	return copied.DeepCopyObject(), nil
}

func (m *Memory) replace(key Key, obj Object) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	old, ok := m.kinds[key.Kind].objects[key]
	switch {
	case !ok:
		return fmt.Errorf("%s: %w", key, ErrNotFound)
	case obj.GetUID() != "" && obj.GetUID() != old.GetUID():
		return fmt.Errorf("%s with UID %q: %w", key, obj.GetUID(), ErrNotFound)
	case obj.GetResourceVersion() != old.GetResourceVersion():
		return fmt.Errorf("%s at version %q is at %q now: %w", key, obj.GetResourceVersion(), old.GetResourceVersion(), ErrConflict)
	}
	if err := checkFinalizers(key, old, obj); err != nil {
		return err
	}
	keepIdentity(old, obj)
	if obj.GetDeletionTimestamp() != nil && len(obj.GetFinalizers()) == 0 {
		m.write(key, Deleted, obj)
		return nil
	}
	m.write(key, Modified, obj)
	return nil
}

// Delete implements [Store].
func (m *Memory) Delete(ctx context.Context, key Key, preconditions Preconditions) error {
	if err := ready(ctx, key); err != nil {
		return err
	}
	for {
		m.mu.Lock()
		old, ok := m.kinds[key.Kind].objects[key]
		m.mu.Unlock()
		if !ok {
			return fmt.Errorf("%s: %w", key, ErrNotFound)
		}
		if err := preconditions.check(key, old); err != nil {
			return err
		}
		last, event := dying(old)
		if event == "" || m.swap(key, old, event, last) {
			return nil
		}
	}
}

// swap writes obj if old is still what is stored.
func (m *Memory) swap(key Key, old Object, event EventType, obj Object) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kinds[key.Kind].objects[key] != old {
		return false
	}
	m.write(key, event, obj)
	return true
}

// write gives obj, which nobody else holds yet, the next version and makes it seen. Memory.mu is held.
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
	if err := readyKind(ctx, kind); err != nil {
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

// accept checks what a writer gave and returns the store's own copy of it.
func accept(ctx context.Context, obj runtime.Object) (Key, Object, error) {
	if err := ctx.Err(); err != nil {
		return Key{}, nil, err
	}
	key, _, err := Validate(obj)
	if err != nil {
		return Key{}, nil, err
	}
	copied, ok := obj.DeepCopyObject().(Object)
	if !ok {
		return Key{}, nil, fmt.Errorf("%T has no metadata: %w", obj, ErrInvalid)
	}
	copied.GetObjectKind().SetGroupVersionKind(key.Kind)
	return key, copied, nil
}

// prepareNew fills in what a new object gets from the store.
func prepareNew(obj metav1.Object) {
	if obj.GetUID() == "" {
		obj.SetUID(newUID())
	}
	if created := obj.GetCreationTimestamp(); created.IsZero() {
		obj.SetCreationTimestamp(metav1.Now().Rfc3339Copy())
	}
	obj.SetDeletionTimestamp(nil)
}

// keepIdentity carries over what an update cannot change.
func keepIdentity(old, updated metav1.Object) {
	updated.SetUID(old.GetUID())
	updated.SetCreationTimestamp(old.GetCreationTimestamp())
	updated.SetDeletionTimestamp(old.GetDeletionTimestamp())
}

// dying returns the object that the deletion of old leaves or ends with, and the event that says so: none when the
// deletion has begun already.
func dying(old Object) (Object, EventType) {
	last, ok := old.DeepCopyObject().(Object)
	if !ok {
		return old, ""
	}
	if len(old.GetFinalizers()) == 0 {
		return last, Deleted
	}
	if old.GetDeletionTimestamp() != nil {
		return old, ""
	}
	now := metav1.Now().Rfc3339Copy()
	last.SetDeletionTimestamp(&now)
	return last, Modified
}

func (p Preconditions) check(key Key, obj metav1.Object) error {
	if p.UID != "" && p.UID != obj.GetUID() {
		return fmt.Errorf("%s has UID %q, not %q: %w", key, obj.GetUID(), p.UID, ErrConflict)
	}
	if p.ResourceVersion != "" && p.ResourceVersion != obj.GetResourceVersion() {
		return fmt.Errorf("%s at version %q is at %q now: %w", key, p.ResourceVersion, obj.GetResourceVersion(), ErrConflict)
	}
	return nil
}

func ready(ctx context.Context, key Key) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return key.Validate()
}

func readyKind(ctx context.Context, kind schema.GroupVersionKind) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	_, err := Namespaced(kind)
	return err
}
