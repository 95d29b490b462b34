// Package rows keeps the rows of a state of the world: lists of pointers, sorted by what tells the rows apart, so that every query
// has an order. A list is short, or an insertion moves a few kilobytes at most. Its lock is that of the state.
package rows

import (
	"cmp"
	"iter"
	"slices"
)

// Find returns the row of a key; nil when there is none.
func Find[R, K any](rows []*R, key K, compare func(*R, K) int) *R {
	if i, ok := slices.BinarySearchFunc(rows, key, compare); ok {
		return rows[i]
	}
	return nil
}

// Insert adds the row of a key that is not there.
func Insert[R, K any](rows []*R, row *R, key K, compare func(*R, K) int) []*R {
	i, _ := slices.BinarySearchFunc(rows, key, compare)
	return slices.Insert(rows, i, row)
}

// Remove takes out the row of a key.
func Remove[R, K any](rows []*R, key K, compare func(*R, K) int) []*R {
	if i, ok := slices.BinarySearchFunc(rows, key, compare); ok {
		return slices.Delete(rows, i, i+1)
	}
	return rows
}

// SetList sets the list of a key, or deletes the key when nothing is in its list.
func SetList[K comparable, R any](lists map[K][]*R, key K, rows []*R) {
	if len(rows) == 0 {
		delete(lists, key)
		return
	}
	lists[key] = rows
}

// AppendCopies adds a copy of each row to copies.
func AppendCopies[C, R any](copies []C, rows []*R, copyOf func(*R) C) []C {
	copies = slices.Grow(copies, len(rows))
	for _, row := range rows {
		copies = append(copies, copyOf(row))
	}
	return copies
}

// KeysOf returns the keys of some values, sorted. It looks at all.
func KeysOf[K cmp.Ordered, V any](values map[K]V, which func(V) bool) []K {
	var keys []K
	for key, value := range values {
		if which(value) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// Pointers yields a pointer to each of the rows that copies returns when the loop begins.
func Pointers[R any](copies func() []R) iter.Seq[*R] {
	return func(yield func(*R) bool) {
		rows := copies()
		for i := range rows {
			if !yield(&rows[i]) {
				return
			}
		}
	}
}
