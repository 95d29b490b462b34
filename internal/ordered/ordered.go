// Package ordered keeps values in order, so that the first one not less than another is found in the time of a logarithm.
//
// A [Set] is a treap: a search tree whose shape is that of random insertions, whatever the order in which values come. It has
// no lock, keeps no goroutine and calls nothing but its comparison.
package ordered

import (
	"iter"
	"math/rand/v2"
)

// Set is an ordered set. Make it with [New]. It is to be used by one goroutine at a time.
type Set[T any] struct {
	compare func(a, b T) int
	root    *node[T]
	length  int
}

// node is one value. Its rank is no less than that of what is below it.
type node[T any] struct {
	value       T
	rank        uint64
	left, right *node[T]
}

// New returns an empty set in the order of compare, which is negative when a comes before b and zero when they are the same
// to the set.
func New[T any](compare func(a, b T) int) *Set[T] { return &Set[T]{compare: compare} }

// Len returns how many values there are.
func (s *Set[T]) Len() int { return s.length }

// Add adds v, in place of the value that is the same to the set.
func (s *Set[T]) Add(v T) {
	s.Remove(v)
	before, after := s.split(s.root, v)
	s.root = join(join(before, &node[T]{value: v, rank: rand.Uint64()}), after) // The shape needs no secrecy.
	s.length++
}

// Remove takes out the value that is the same as v to the set, and reports whether there was one.
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

// From returns the values that do not come before v, in order. The set must not be changed meanwhile.
func (s *Set[T]) From(v T) iter.Seq[T] {
	return func(yield func(T) bool) { s.ascend(s.root, v, yield) }
}

// ascend yields what is at n and below it and not before v, and reports whether more is asked for.
func (s *Set[T]) ascend(n *node[T], v T, yield func(T) bool) bool {
	if n == nil {
		return true
	}
	if s.compare(n.value, v) < 0 {
		return s.ascend(n.right, v, yield)
	}
	return s.ascend(n.left, v, yield) && yield(n.value) && s.ascend(n.right, v, yield)
}

// split returns what of n comes before v, and the rest.
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

// join returns one tree of two, of which all of a comes before all of b.
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
