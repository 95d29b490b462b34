package cache

// roster is a list of which each member keeps its own seat, so that joining, leaving and being asked for take the same
// time however long it is. Whoever uses it holds the lock of its state.
type roster[T any] struct {
	first *seat[T]
	count int
}

// seat is the place of a member in one roster.
type seat[T any] struct {
	member     T
	prev, next *seat[T]
	taken      bool
}

// join adds the seat. One that is taken stays where it is.
func (r *roster[T]) join(s *seat[T]) {
	if s.taken {
		return
	}
	s.taken, s.next = true, r.first
	if r.first != nil {
		r.first.prev = s
	}
	r.first = s
	r.count++
}

// leave takes the seat out. One that is free stays so.
func (r *roster[T]) leave(s *seat[T]) {
	if !s.taken {
		return
	}
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		r.first = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	}
	s.taken, s.prev, s.next = false, nil, nil
	r.count--
}

// all yields the members. The one that is yielded may leave meanwhile.
func (r *roster[T]) all(yield func(T) bool) {
	for s := r.first; s != nil; {
		next := s.next
		if !yield(s.member) {
			return
		}
		s = next
	}
}

// rosters is one roster for each key that has members.
type rosters[K comparable, T any] map[K]roster[T]

func (m rosters[K, T]) join(key K, s *seat[T]) {
	r := m[key]
	r.join(s)
	m[key] = r
}

func (m rosters[K, T]) leave(key K, s *seat[T]) {
	r := m[key]
	r.leave(s)
	if r.count == 0 {
		delete(m, key)
		return
	}
	m[key] = r
}
