package store

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/volumekit/volumekit/internal/journal"
)

// commitAll commits what is in the queue, all that there is at a time.
func (s *Disk) commitAll() {
	for {
		s.mu.Lock()
		writes := s.queue
		s.queue = nil
		s.committing = len(writes) > 0
		s.mu.Unlock()
		if len(writes) == 0 {
			return
		}
		s.commit(writes)
		s.compact()
	}
}

// batch is what is written by one frame.
type batch struct {
	payload framePayload
	version uint64
	// objects are those that are changed, nil where one is deleted, and sizes what they will take.
	objects map[Key]Object
	sizes   map[Key]int64
	changes []PlannedWrite
	given   []string // the resource versions that the objects of changes came with
	total   int64
	grows   bool // something in it is no deletion
}

// commit commits writes by one frame. When there is no room for that, each is tried by itself: those that delete have room left.
func (s *Disk) commit(writes []*diskWrite) {
	if err := s.commitTogether(writes); errors.Is(err, ErrFull) && len(writes) > 1 {
		for _, w := range writes {
			_ = s.commitTogether([]*diskWrite{w})
		}
	}
	for _, w := range writes {
		close(w.done)
	}
}

// commitTogether makes writes durable by one frame, then seen. The error is that of all; each has its own as well.
func (s *Disk) commitTogether(writes []*diskWrite) error {
	b := &batch{version: s.memory.present(), objects: map[Key]Object{}, sizes: map[Key]int64{}, total: s.total}
	for _, w := range writes {
		w.err = s.add(b, w)
	}
	err := s.persist(b)
	if err == nil {
		s.memory.apply(b.changes)
		return nil
	}
	for _, w := range writes {
		w.err = err // What was found wrong may come from a write that is not there now.
	}
	for i, c := range b.changes {
		c.Object.SetResourceVersion(b.given[i])
	}
	return err
}

// persist makes a batch durable.
func (s *Disk) persist(b *batch) error {
	line := b.payload.line()
	if line == nil {
		return nil
	}
	err := s.journal.MakeRoom(len(line), s.reserve())
	if journal.IsFull(err) && b.grows {
		s.giveUpHistory()
		err = s.journal.MakeRoom(len(line), s.reserve())
	}
	s.full = journal.IsFull(err)
	if err == nil || !b.grows {
		err = s.journal.Append(line)
	}
	if err != nil {
		return s.notWritten(err)
	}
	for key, size := range b.sizes {
		s.resize(key, size)
	}
	s.freed = s.freed || !b.grows
	return nil
}

// notWritten says what became of a write that failed.
func (s *Disk) notWritten(err error) error {
	if s.journal.IsBroken() {
		err = damaged(err)
		err = fmt.Errorf("%w, and what was not acknowledged may be in it: each write tries again to mend it: %w", ErrUnsynced, err)
	} else {
		err = fmt.Errorf("nothing was written: %w", err)
	}
	if journal.IsFull(err) {
		s.full = true
		return fmt.Errorf("%w: delete objects, or make room on the disk: %w", ErrFull, err)
	}
	return err
}

// damaged has an error match ErrDamaged where the journal is not what was written to it any more.
func damaged(err error) error {
	if errors.Is(err, journal.ErrChanged) {
		return fmt.Errorf("%w: open the store again: %w", ErrDamaged, err)
	}
	return err
}

// reserve is how much room the journal keeps for deletions: that of the largest object fits in twice, and those of many small ones.
func (s *Disk) reserve() int64 { return 2 * s.options.MaxObjectBytes }

// add plans a write on top of what is in the batch, and adds it.
func (s *Disk) add(b *batch, w *diskWrite) error {
	if w.abandoned.Load() {
		return ErrClosed // No caller reads it.
	}
	found := s.memory.find(w.keys)
	for i, key := range w.keys {
		if obj, changed := b.objects[key]; changed {
			found[i] = obj
		}
	}
	changes, err := w.plan.Changes(found)
	if err != nil {
		return err
	}
	e, err := s.encode(b, changes, found)
	if err != nil {
		return err
	}
	w.changes = changes
	b.total, b.grows = e.total, b.grows || e.grows
	for i, c := range changes {
		if c.Event != "" {
			b.take(c, e.objects[i])
		}
	}
	return nil
}

// encoded is what the changes of one write come to.
type encoded struct {
	objects [][]byte // as JSON
	total   int64    // of all objects of the store after it
	grows   bool     // it does more than to delete
}

// encode gives changes, each of the object found in its place, their versions. It refuses what is too large, but no deletion.
func (s *Disk) encode(b *batch, changes []PlannedWrite, found []Object) (encoded, error) {
	e := encoded{objects: make([][]byte, len(changes)), total: b.total}
	version := b.version
	for i, c := range changes {
		if c.Event == "" {
			continue
		}
		version++
		var err error
		if e.objects[i], err = encodeAt(c.Object, version); err != nil {
			return e, fmt.Errorf("%s: %w", c.Key, err)
		}
		before, after := s.sizeBefore(b, c.Key), int64(len(e.objects[i]))
		deletes := c.deletes(found[i], after-before)
		if after > s.options.MaxObjectBytes && !deletes {
			return e, fmt.Errorf("%s has %d bytes, more than %d: %w", c.Key, after, s.options.MaxObjectBytes, ErrFull)
		}
		e.total += c.sizeOf(e.objects[i]) - before
		e.grows = e.grows || !deletes
	}
	if e.grows && e.total > b.total && e.total > s.options.MaxBytes {
		return e, fmt.Errorf("all objects have %d bytes, more than %d: delete some: %w", e.total, s.options.MaxBytes, ErrFull)
	}
	return e, nil
}

// deletes reports whether a change is a deletion, the beginning of one, or a step of one, which lets the object grow by nothing.
func (c PlannedWrite) deletes(old Object, growth int64) bool {
	switch {
	case c.Event == Deleted:
		return true
	case old == nil || c.Object.GetDeletionTimestamp() == nil:
		return false
	}
	return old.GetDeletionTimestamp() == nil || growth <= 0
}

// sizeOf returns what an object takes after its change.
func (c PlannedWrite) sizeOf(encoded []byte) int64 {
	if c.Event == Deleted {
		return 0
	}
	return int64(len(encoded))
}

func (s *Disk) sizeBefore(b *batch, key Key) int64 {
	if size, changed := b.sizes[key]; changed {
		return size
	}
	return s.sizes[key]
}

// take adds one change.
func (b *batch) take(c PlannedWrite, encoded []byte) {
	b.version++
	b.given = append(b.given, c.Object.GetResourceVersion())
	c.Object.SetResourceVersion(strconv.FormatUint(b.version, 10))
	b.payload.add(b.version, c.Event, encoded)
	b.changes = append(b.changes, c)
	b.objects[c.Key], b.sizes[c.Key] = c.Object, c.sizeOf(encoded)
	if c.Event == Deleted {
		b.objects[c.Key] = nil
	}
}

// present returns the version of the last write.
func (m *Memory) present() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.version
}

// apply makes changes seen, all at once.
func (m *Memory) apply(changes []PlannedWrite) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range changes {
		m.write(c.Key, c.Event, c.Object)
	}
}
