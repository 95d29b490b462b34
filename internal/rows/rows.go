// Package rows has functions for the rows of a state of the world: lists of pointers, sorted by the key of the rows, so every query
// returns its rows in order. An insertion moves the rows behind it, a few kilobytes at most. The functions do not lock: the state does.
package rows

import (
	"cmp"
	"iter"
	"slices"
)

// Find returns the row with a key; nil if there is none.
func Find[R, K any](rows []*R, key K, compare func(*R, K) int) *R {
	if i, ok := slices.BinarySearchFunc(rows, key, compare); ok {
		return rows[i]
	}
	return nil
}

// Insert adds a row with a key that no row has.
func Insert[R, K any](rows []*R, row *R, key K, compare func(*R, K) int) []*R {
	i, _ := slices.BinarySearchFunc(rows, key, compare)
	return slices.Insert(rows, i, row)
}

// Remove removes the row with a key, if there is one.
func Remove[R, K any](rows []*R, key K, compare func(*R, K) int) []*R {
	if i, ok := slices.BinarySearchFunc(rows, key, compare); ok {
		return slices.Delete(rows, i, i+1)
	}
	return rows
}

// SetList sets the list of a key. It deletes the key if the list is empty.
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

// KeysOf returns the keys of the values for which which returns true, sorted. It visits all values.
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

// Pointers yields a pointer to each of the rows that copies returns. It calls copies once, at the start of the loop.
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
