package store

import "k8s.io/apimachinery/pkg/types"

// index is what a mirror keeps of its objects beside their names. The mirror's lock guards it.
type index[T Object] interface {
	add(name types.NamespacedName, obj T)
	remove(name types.NamespacedName, obj T)
	clear()
}

// Index finds the objects of a mirror by something else than their names, at the cost of those that are found. All methods
// may be called from several goroutines at once.
type Index[T Object, K comparable] struct {
	mirror *Mirror[T]
	keysOf func(obj T) []K
	names  map[K]map[types.NamespacedName]struct{}
}

// NewIndex returns an index of m by the keys that keysOf returns of an object, which is a pure function. It is to be made
// before m is followed.
func NewIndex[T Object, K comparable](m *Mirror[T], keysOf func(obj T) []K) *Index[T, K] {
	x := &Index[T, K]{mirror: m, keysOf: keysOf}
	x.clear()
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, obj := range m.items {
		x.add(name, obj)
	}
	m.indexes = append(m.indexes, x)
	return x
}

// Get returns the objects of a key, in the order of their names.
func (x *Index[T, K]) Get(key K) []T {
	objects := x.collect(key)
	sortByName(objects)
	return objects
}

func (x *Index[T, K]) collect(key K) []T {
	x.mirror.mu.RLock()
	defer x.mirror.mu.RUnlock()
	objects := make([]T, 0, len(x.names[key]))
	for name := range x.names[key] {
		objects = append(objects, x.mirror.items[name])
	}
	return objects
}

func (x *Index[T, K]) clear() { x.names = map[K]map[types.NamespacedName]struct{}{} }

func (x *Index[T, K]) add(name types.NamespacedName, obj T) {
	for _, key := range x.keysOf(obj) {
		if x.names[key] == nil {
			x.names[key] = map[types.NamespacedName]struct{}{}
		}
		x.names[key][name] = struct{}{}
	}
}

func (x *Index[T, K]) remove(name types.NamespacedName, obj T) {
	for _, key := range x.keysOf(obj) {
		delete(x.names[key], name)
		if len(x.names[key]) == 0 {
			delete(x.names, key)
		}
	}
}
