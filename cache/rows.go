package cache

import (
	"cmp"
	"iter"
	"slices"
)

// The rows of a volume, a pod or a node are a list of pointers, sorted by what tells them apart, so that every query has an
// order. A list is short, or an insertion moves a few kilobytes at most. Its lock is that of the state.

// find returns the row of a key; nil when there is none.
func find[R, K any](rows []*R, key K, compare func(*R, K) int) *R {
	if i, ok := slices.BinarySearchFunc(rows, key, compare); ok {
		return rows[i]
	}
	return nil
}

// insert adds the row of a key that is not there.
func insert[R, K any](rows []*R, row *R, key K, compare func(*R, K) int) []*R {
	i, _ := slices.BinarySearchFunc(rows, key, compare)
	return slices.Insert(rows, i, row)
}

// remove takes out the row of a key.
func remove[R, K any](rows []*R, key K, compare func(*R, K) int) []*R {
	if i, ok := slices.BinarySearchFunc(rows, key, compare); ok {
		return slices.Delete(rows, i, i+1)
	}
	return rows
}

// setList sets the list of a key, or deletes the key when nothing is in its list.
func setList[K comparable, R any](lists map[K][]*R, key K, rows []*R) {
	if len(rows) == 0 {
		delete(lists, key)
		return
	}
	lists[key] = rows
}

// appendCopies adds a copy of each row to copies.
func appendCopies[C, R any](copies []C, rows []*R, copyOf func(*R) C) []C {
	copies = slices.Grow(copies, len(rows))
	for _, row := range rows {
		copies = append(copies, copyOf(row))
	}
	return copies
}

// keysOf returns the keys of some values, sorted. It looks at all.
func keysOf[K cmp.Ordered, V any](values map[K]V, which func(V) bool) []K {
	var keys []K
	for key, value := range values {
		if which(value) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// pointers yields a pointer to each of the rows that copies returns when the loop begins.
func pointers[R any](copies func() []R) iter.Seq[*R] {
	return func(yield func(*R) bool) {
		rows := copies()
		for i := range rows {
			if !yield(&rows[i]) {
				return
			}
		}
	}
}
