package cache

// seat is the place of a member in a list of which each member keeps its own, so that joining, leaving and being asked
// for take the same time however long the list is. Whoever uses it holds the lock of its state.
type seat[T any] struct {
	member     T
	prev, next *seat[T]
	taken      bool
}

// link puts the seat between its neighbours; both may be nil.
func (s *seat[T]) link(prev, next *seat[T]) {
	s.taken, s.prev, s.next = true, prev, next
	if prev != nil {
		prev.next = s
	}
	if next != nil {
		next.prev = s
	}
}

// unlink takes the seat out from between its neighbours.
func (s *seat[T]) unlink() {
	if s.prev != nil {
		s.prev.next = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	}
	s.taken, s.prev, s.next = false, nil, nil
}

// all yields the members from the seat on, which may be nil. The one that is yielded may leave meanwhile.
func (s *seat[T]) all(yield func(T) bool) {
	for s != nil {
		next := s.next
		if !yield(s.member) {
			return
		}
		s = next
	}
}

// roster is one list, whose length is known.
type roster[T any] struct {
	first *seat[T]
	count int
}

// join adds the seat. One that is taken stays where it is.
func (r *roster[T]) join(s *seat[T]) {
	if s.taken {
		return
	}
	s.link(nil, r.first)
	r.first = s
	r.count++
}

// leave takes the seat out. One that is free stays so.
func (r *roster[T]) leave(s *seat[T]) {
	if !s.taken {
		return
	}
	if r.first == s {
		r.first = s.next
	}
	s.unlink()
	r.count--
}

// all yields the members. The one that is yielded may leave meanwhile.
func (r *roster[T]) all(yield func(T) bool) { r.first.all(yield) }

// rosters is one list for each key that has members.
type rosters[K comparable, T any] map[K]*seat[T]

// join adds the seat to the list of key. One that is taken stays where it is.
func (m rosters[K, T]) join(key K, s *seat[T]) {
	if s.taken {
		return
	}
	first := m[key]
	if first != nil {
		s.link(first, first.next) // Who comes and goes behind the first spares the map both.
		return
	}
	s.link(nil, nil)
	m[key] = s
}

// leave takes the seat out of the list of key, where it is. One that is free stays so.
func (m rosters[K, T]) leave(key K, s *seat[T]) {
	if !s.taken {
		return
	}
	switch {
	case s.prev != nil:
	case s.next != nil:
		m[key] = s.next
	default:
		delete(m, key)
	}
	s.unlink()
}
