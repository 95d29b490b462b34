package inuse

import (
	"maps"
	"sync"

	"github.com/volumekit/volumekit/controller/internal/work"
)

// lookups are the items that wait for a read of the store. A lookup that is added during a read is answered by the next
// read, together with all others: the deletion of a thousand claims costs two lists. A namespace has its own reads; "" is
// that of all. L says what is looked up, A is the answer. The methods may be called from several goroutines at once.
type lookups[L comparable, A any] struct {
	mu      sync.Mutex // not held during I/O
	waiting map[string]map[work.Item]L
	answers map[work.Item]answer[L, A]
}

// answer is what was read from the store after its lookup was added.
type answer[L comparable, A any] struct {
	lookup L
	found  A
}

func newLookups[L comparable, A any]() *lookups[L, A] {
	return &lookups[L, A]{waiting: map[string]map[work.Item]L{}, answers: map[work.Item]answer[L, A]{}}
}

// add adds the lookup of an item to the next read of a namespace.
func (s *lookups[L, A]) add(namespace string, item work.Item, l L) {
	s.addAll(namespace, map[work.Item]L{item: l})
}

// addAll adds lookups to the next read of a namespace.
func (s *lookups[L, A]) addAll(namespace string, added map[work.Item]L) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting[namespace] == nil {
		s.waiting[namespace] = map[work.Item]L{}
	}
	maps.Copy(s.waiting[namespace], added)
}

// begin removes and returns the lookups of a namespace. A read that begins after it answers them.
func (s *lookups[L, A]) begin(namespace string) map[work.Item]L {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := s.waiting[namespace]
	delete(s.waiting, namespace)
	return waiting
}

// keep stores the answer for an item.
func (s *lookups[L, A]) keep(item work.Item, l L, found A) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[item] = answer[L, A]{lookup: l, found: found}
}

// answer returns the answer to a lookup.
func (s *lookups[L, A]) answer(item work.Item, l L) (found A, answered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, there := s.answers[item]
	return a.found, there && a.lookup == l
}

// drop removes the answer for an item.
func (s *lookups[L, A]) drop(item work.Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.answers, item)
}
