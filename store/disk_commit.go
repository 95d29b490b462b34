package store

import (
	"fmt"
	"os"
	"strconv"
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
	changes []Change
	total   int64
}

// commit makes writes durable by one frame, then seen, and tells their callers.
func (s *Disk) commit(writes []*diskWrite) {
	b := &batch{version: s.memory.present(), objects: map[Key]Object{}, sizes: map[Key]int64{}, total: s.total}
	for _, w := range writes {
		w.err = s.add(b, w)
	}
	if err := s.persist(b); err != nil {
		for _, w := range writes {
			w.err = err // What was found wrong may come from a write that is not there now.
		}
	} else {
		s.memory.apply(b.changes)
	}
	for _, w := range writes {
		close(w.done)
	}
}

// persist makes a batch durable.
func (s *Disk) persist(b *batch) error {
	line := b.payload.line()
	if line == nil {
		return nil
	}
	if err := s.journal.append(line); err != nil {
		if isFull(err) {
			return fmt.Errorf("%w: %w", ErrFull, err)
		}
		return fmt.Errorf("nothing was written: %w", err)
	}
	for key, size := range b.sizes {
		s.resize(key, size)
	}
	return nil
}

// add plans a write on top of what is in the batch, and adds it.
func (s *Disk) add(b *batch, w *diskWrite) error {
	if w.abandoned.Load() {
		return ErrClosed // Nobody reads it.
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
	encoded, err := s.encode(b, changes)
	if err != nil {
		return err
	}
	w.changes = changes
	for i, c := range changes {
		if c.Event != "" {
			b.take(c, encoded[i])
		}
	}
	return nil
}

// encode gives changes their versions and returns their JSON. It refuses what is too large.
func (s *Disk) encode(b *batch, changes []Change) ([][]byte, error) {
	encoded := make([][]byte, len(changes))
	version, total, grows := b.version, b.total, false
	for i, c := range changes {
		if c.Event == "" {
			continue
		}
		version++
		c.Object.SetResourceVersion(strconv.FormatUint(version, 10))
		var err error
		if _, encoded[i], err = encodeObject(c.Object); err != nil {
			return nil, fmt.Errorf("%s: %w", c.Key, err)
		}
		size := int64(len(encoded[i]))
		if size > s.options.MaxObjectBytes && c.Event != Deleted {
			return nil, fmt.Errorf("%s has %d bytes, more than %d: %w", c.Key, size, s.options.MaxObjectBytes, ErrFull)
		}
		change := b.sizeAfter(c, size) - s.sizeBefore(b, c.Key)
		total += change
		grows = grows || change > 0
	}
	if grows && total > s.options.MaxBytes {
		return nil, fmt.Errorf("all objects have %d bytes, more than %d: delete some: %w", total, s.options.MaxBytes, ErrFull)
	}
	b.total = total
	return encoded, nil
}

func (b *batch) sizeAfter(c Change, size int64) int64 {
	if c.Event == Deleted {
		return 0
	}
	return size
}

func (s *Disk) sizeBefore(b *batch, key Key) int64 {
	if size, changed := b.sizes[key]; changed {
		return size
	}
	return s.sizes[key]
}

// take adds one change.
func (b *batch) take(c Change, encoded []byte) {
	b.version++
	b.payload.add(b.version, c.Event, encoded)
	b.changes = append(b.changes, c)
	b.objects[c.Key], b.sizes[c.Key] = c.Object, b.sizeAfter(c, int64(len(encoded)))
	if c.Event == Deleted {
		b.objects[c.Key] = nil
	}
}

// compact puts a snapshot in the place of a journal that has grown to twice the size of what there is, so that it costs no more
// than the writes did. One journal before the snapshot stays, for watches after a restart. What fails is tried again after the
// next write.
func (s *Disk) compact() {
	if s.journal.size < s.options.CompactBytes || s.journal.size < 2*s.snapshotSize {
		return
	}
	version, old := s.memory.present(), s.journal
	if err := old.mend(); err != nil {
		return // What is torn is the newest journal, or damaged.
	}
	next, err := createJournal(s.files, version)
	if err != nil {
		s.options.Logger.Warn("the journal grows on: no other can be begun", "err", err)
		return
	}
	s.journal = next
	if err := old.file.Close(); err != nil {
		s.options.Logger.Warn("closing a journal", "file", old.name, "err", err)
	}
	size, err := writeSnapshot(s.files, version, s.objects())
	if err != nil {
		s.options.Logger.Warn("no snapshot could be written", "err", err)
		return
	}
	s.snapshotSize = size
	s.forget(old.name, version)
}

// forget removes what is older than a snapshot and the journal before it.
func (s *Disk) forget(last string, snapshot uint64) {
	names, err := s.files.names()
	if err != nil {
		s.options.Logger.Warn("old files are not removed", "err", err)
		return
	}
	for _, name := range names {
		_, isJournal := baseOf(name, journalPrefix)
		base, isSnapshot := baseOf(name, snapshotPrefix)
		if isJournal && name < last || isSnapshot && base < snapshot {
			if err := s.files.unlink(name); err != nil && !os.IsNotExist(err) {
				s.options.Logger.Warn("an old file is not removed", "file", name, "err", err)
			}
		}
	}
}

// present returns the version of the last write.
func (m *Memory) present() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.version
}

// apply makes changes seen, all at once.
func (m *Memory) apply(changes []Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range changes {
		m.write(c.Key, c.Event, c.Object)
	}
}
