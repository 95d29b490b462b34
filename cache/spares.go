package cache

// spares are values that were given up and may be taken again, so that what comes and goes all the time allocates nothing.
// A value must be known to nobody any more when it is given up. Few are kept. Whoever uses spares holds the lock of its
// state.
type spares[T any] struct {
	free  [few]*T
	count int
}

// take returns a zero value.
func (s *spares[T]) take() *T {
	if s.count == 0 {
		return new(T)
	}
	s.count--
	value := s.free[s.count]
	s.free[s.count] = nil
	return value
}

// give gives a value up.
func (s *spares[T]) give(value *T) {
	var zero T
	*value = zero
	if s.count < len(s.free) {
		s.free[s.count] = value
		s.count++
	}
}
