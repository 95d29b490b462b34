package cache

import "sync/atomic"

// slots holds rows so that they can be gone through without a lock and without a copy while they are changed: a row is
// never changed, but replaced in its slot, by one atomic store. Whoever changes slots holds the lock of its state.
//
// Who goes through sees each row that is there all the time exactly once, in one of its versions; one that comes or goes
// meanwhile may be seen or not. It costs as much as the most rows there were since there were none.
type slots[R any] struct {
	chunks atomic.Pointer[[]*slotChunk[R]]
	free   []int32 // taken before and empty now
	fresh  int32   // the first that was never taken
}

const slotsPerChunk = 256

type slotChunk[R any] [slotsPerChunk]atomic.Pointer[R]

// put takes a slot for row and returns its number.
func (s *slots[R]) put(row *R) int32 {
	var n int32
	if last := len(s.free) - 1; last >= 0 {
		n, s.free = s.free[last], s.free[:last]
	} else {
		n = s.fresh
		s.fresh++
		s.grow()
	}
	s.set(n, row)
	return n
}

// grow makes room for the slots below fresh.
func (s *slots[R]) grow() {
	var chunks []*slotChunk[R]
	if old := s.chunks.Load(); old != nil {
		chunks = *old
	}
	if int(s.fresh) <= len(chunks)*slotsPerChunk {
		return
	}
	// Whoever goes through has the old slice, of which nothing is overwritten.
	chunks = append(chunks, new(slotChunk[R]))
	s.chunks.Store(&chunks)
}

// set replaces the row of a slot; nil empties it.
func (s *slots[R]) set(n int32, row *R) {
	(*s.chunks.Load())[n/slotsPerChunk][n%slotsPerChunk].Store(row)
}

// drop empties a slot, to be taken again. When all are empty, their memory goes.
func (s *slots[R]) drop(n int32) {
	s.set(n, nil)
	s.free = append(s.free, n)
	if len(s.free) == int(s.fresh) && s.fresh > slotsPerChunk {
		s.chunks.Store(nil)
		s.free, s.fresh = nil, 0
	}
}

// all yields the rows, in no particular order.
func (s *slots[R]) all(yield func(*R) bool) {
	chunks := s.chunks.Load()
	if chunks == nil {
		return
	}
	for _, c := range *chunks {
		for i := range c {
			if row := c[i].Load(); row != nil && !yield(row) {
				return
			}
		}
	}
}
