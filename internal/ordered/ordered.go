// Package ordered has a sorted set. It finds the first value that is not less than another in logarithmic time.
//
// A [Set] is a treap: a search tree whose shape is that of random insertions, whatever the order in which values are added. It
// has no lock and no goroutine, and calls nothing but its comparison.
package ordered

import (
	"iter"
	"math/rand/v2"
)

// Set is an ordered set. Make it with [New]. It may be used by one goroutine at a time.
type Set[T any] struct {
	compare func(a, b T) int
	root    *node[T]
	length  int
}

// node is one value. No node below it has a higher rank.
type node[T any] struct {
	value       T
	rank        uint64
	left, right *node[T]
}

// New returns an empty set in the order of compare, which is negative if a comes before b, and zero if a and b are equal.
func New[T any](compare func(a, b T) int) *Set[T] { return &Set[T]{compare: compare} }

// Len returns the number of values.
func (s *Set[T]) Len() int { return s.length }

// Add adds v. It replaces a value that is equal to v.
func (s *Set[T]) Add(v T) {
	s.Remove(v)
	before, after := s.split(s.root, v)
	s.root = join(join(before, &node[T]{value: v, rank: rand.Uint64()}), after) // Nothing depends on the ranks being secret.
	s.length++
}

// Remove removes the value that is equal to v, and reports whether there was one.
func (s *Set[T]) Remove(v T) bool {
	for at := &s.root; *at != nil; {
		switch order := s.compare(v, (*at).value); {
		case order == 0:
			*at = join((*at).left, (*at).right)
			s.length--
			return true
		case order < 0:
			at = &(*at).left
		default:
			at = &(*at).right
		}
	}
	return false
}

// From returns the values that are not less than v, in order. Do not change the set during the loop.
func (s *Set[T]) From(v T) iter.Seq[T] {
	return func(yield func(T) bool) { s.ascend(s.root, v, yield) }
}

// ascend yields the values of the tree n that are not less than v. It returns false if yield does.
func (s *Set[T]) ascend(n *node[T], v T, yield func(T) bool) bool {
	if n == nil {
		return true
	}
	if s.compare(n.value, v) < 0 {
		return s.ascend(n.right, v, yield)
	}
	return s.ascend(n.left, v, yield) && yield(n.value) && s.ascend(n.right, v, yield)
}

// split splits the tree n into the values less than v, and the others.
func (s *Set[T]) split(n *node[T], v T) (before, after *node[T]) {
	if n == nil {
		return nil, nil
	}
	if s.compare(n.value, v) < 0 {
		n.right, after = s.split(n.right, v)
		return n, after
	}
	before, n.left = s.split(n.left, v)
	return before, n
}

// join joins two trees. All values of a must be less than all values of b.
func join[T any](a, b *node[T]) *node[T] {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.rank > b.rank:
		a.right = join(a.right, b)
		return a
	}
	b.left = join(a, b.left)
	return b
}
