package store

import (
	"maps"
	"os"
	"slices"
	"strings"
)

// compact puts a snapshot in the place of a journal that has grown to twice the size of what there is, so that it costs no more
// than the writes did. Writes go to the next journal from now on, and wait for nothing more: the snapshot is written meanwhile, of
// the objects as they are now, since no object is ever changed. Until it is whole the journals say it all. One that fails is
// tried again when the journal has grown as much once more.
func (s *Disk) compact() {
	full := s.makesRoom()
	if s.snapshotting.Load() || !full && !s.isDue() {
		return
	}
	version, old := s.memory.present(), s.journal
	if version == old.base || old.Mend() != nil {
		return // What is torn is the newest journal, or damaged.
	}
	kept, keep := old.base, s.reserve()
	if full {
		kept, keep, s.freed = version, 0, false
		_ = old.Cut() // The next append to it says what is wrong.
	}
	next, err := createJournal(s.files, version, keep)
	if err != nil {
		s.options.Logger.Warn("the journal grows on: no other can be begun", "error", err)
		return
	}
	s.journal = next
	s.behind.Add(old.Size())
	s.leave(old)
	objects := s.objects()
	s.snapshotting.Store(true)
	s.committers.Go(func() {
		defer s.snapshotting.Store(false)
		s.snapshot(version, objects, kept)
	})
}

// isDue reports whether a snapshot pays.
func (s *Disk) isDue() bool {
	return s.journal.Size() >= s.options.CompactBytes && s.journal.Size() >= 2*s.snapshotSize.Load()
}

// makesRoom reports whether a snapshot makes room on a disk that is full: much was deleted, and what is left fits into the room
// that was reserved for deletions.
func (s *Disk) makesRoom() bool {
	files, snapshot := s.behind.Load()+s.journal.Size()+s.snapshotSize.Load(), s.total+s.total/4
	return s.full && s.freed && files > snapshot+snapshot/4 && s.journal.Reserved()-s.journal.Size() > snapshot
}

// giveUpHistory removes the journal that is there for watches after a restart alone.
func (s *Disk) giveUpHistory() {
	base := s.snapshotBase.Load()
	s.forget(base, base)
}

// leave closes a journal that is not written to any more.
func (s *Disk) leave(j *diskJournal) {
	if err := j.Cut(); err != nil {
		s.options.Logger.Warn("the room that a journal has reserved is not given back", "file", j.name, "error", err)
	}
	if err := j.Close(); err != nil {
		s.options.Logger.Warn("closing a journal", "file", j.name, "error", err)
	}
}

// snapshot writes a snapshot, and removes what it stands for, but for the journal from kept on.
func (s *Disk) snapshot(version uint64, objects []Object, kept uint64) {
	size, err := writeSnapshot(s.files, version, objects)
	if err != nil {
		s.options.Logger.Warn("no snapshot could be written", "error", err)
		return
	}
	s.snapshotSize.Store(size)
	s.snapshotBase.Store(version)
	s.behind.Store(0)
	s.forget(kept, version)
}

// objects returns every object, in no order.
func (s *Disk) objects() []Object {
	var all []Object
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	for _, kind := range s.memory.table.Kinds() {
		all = slices.AppendSeq(all, maps.Values(s.memory.kinds[kind].objects))
	}
	return all
}

// forget removes what is older than a snapshot, but for one journal, which is there for watches after a restart.
func (s *Disk) forget(kept, snapshot uint64) {
	names, err := s.files.Names()
	if err != nil {
		s.options.Logger.Warn("old files are not removed", "error", err)
		return
	}
	for _, name := range names {
		journal, isJournal := baseOf(name, journalPrefix)
		base, isSnapshot := baseOf(name, snapshotPrefix)
		if isJournal && journal < snapshot && journal != kept || isSnapshot && base < snapshot {
			if err := s.files.Unlink(name); err != nil && !os.IsNotExist(err) {
				s.options.Logger.Warn("an old file is not removed", "file", name, "error", err)
			}
		}
	}
}

// sortObjects sorts objects, so that a snapshot says the same of the same.
func sortObjects(objects []Object) {
	type named struct {
		kind, name string
		object     Object
	}
	all := make([]named, 0, len(objects))
	for _, obj := range objects {
		all = append(all, named{obj.GetObjectKind().GroupVersionKind().Kind, NameOf(obj).String(), obj})
	}
	slices.SortFunc(all, func(a, b named) int {
		if c := strings.Compare(a.kind, b.kind); c != 0 {
			return c
		}
		return strings.Compare(a.name, b.name)
	})
	for i, n := range all {
		objects[i] = n.object
	}
}
