package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// Damage is a file of a [Disk] that is not as it was written.
type Damage struct {
	// File is its name in the directory.
	File string
	// Offset is where in the file, in bytes.
	Offset int64
	// Err is what is wrong.
	Err error
}

// DamageError says which files of a [Disk] are damaged. It matches [ErrDamaged].
type DamageError struct {
	// Damage is what was found; not empty.
	Damage []Damage
}

// Error names the files.
func (e *DamageError) Error() string {
	texts := make([]string, 0, len(e.Damage))
	for _, d := range e.Damage {
		texts = append(texts, fmt.Sprintf("%s at byte %d: %v", d.File, d.Offset, d.Err))
	}
	return fmt.Sprintf("%v: %s: restore the directory, or set Salvage to go on with what can be read", ErrDamaged, strings.Join(texts, "; "))
}

// Unwrap returns [ErrDamaged].
func (e *DamageError) Unwrap() error { return ErrDamaged }

// loading is the reading of a directory. It belongs to one goroutine.
type loading struct {
	read   func(name string) ([]byte, error)
	memory *Memory
	// snapshots and journals are the versions in the names of files, ascending.
	snapshots, journals []uint64
	// version is how far the files were read, base where the history begins that was read.
	version, base uint64
	snapshotSize  int64
	last          parsedFile   // of the newest journal
	begun         uint64       // up to where a later journal, which was never written to, says that there is something
	marked        bool         // there is a mark of a clean close
	closed        *closedFrame // the mark; nil when there is none that is whole
	damage        []Damage
	sizes         map[Key]int64 // of the objects, as JSON
}

// newLoading sorts names.
func newLoading(names []string, read func(string) ([]byte, error), memory *Memory) *loading {
	l := &loading{read: read, memory: memory, sizes: map[Key]int64{}}
	for _, name := range names {
		l.marked = l.marked || name == closedName
		if base, ok := baseOf(name, snapshotPrefix); ok {
			l.snapshots = append(l.snapshots, base)
		}
		if base, ok := baseOf(name, journalPrefix); ok {
			l.journals = append(l.journals, base)
		}
	}
	slices.Sort(l.snapshots)
	slices.Sort(l.journals)
	return l
}

func baseOf(name, prefix string) (uint64, bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	if !ok || len(digits) != 20 {
		return 0, false
	}
	base, err := strconv.ParseUint(digits, 10, 64)
	return base, err == nil
}

// load reads the newest snapshot, the journals from there on, and those before it that reach up to it, for the history. What
// is damaged is noted, and all else is read. An error says that nothing is known, or that this program must not touch it.
func (l *loading) load() error {
	if err := l.loadSnapshot(); err != nil {
		return err
	}
	if _, ok := slices.BinarySearch(l.journals, l.version); !ok && len(l.snapshots)+len(l.journals) > 0 {
		if err := l.note(journalName(l.version), 0, fs.ErrNotExist); err != nil {
			return err
		}
	}
	if err := l.readLast(); err != nil {
		return err
	}
	if err := l.loadClosed(); err != nil {
		return err
	}
	for i, base := range l.chain() {
		if err := l.loadJournal(base, i); err != nil {
			return err
		}
	}
	if l.version < l.begun {
		if err := l.note(journalName(l.journals[len(l.journals)-1]), l.last.size, l.unknown(l.begun)); err != nil {
			return err
		}
	}
	for _, kind := range l.memory.kinds {
		kind.log.forgotten = max(kind.log.forgotten, l.base)
	}
	l.memory.version = l.version
	return nil
}

// readLast reads the newest journal. One that was never written to, after one that was, is left out: the program may have failed
// to make it durable, and gone on with the one before.
func (l *loading) readLast() error {
	for n := len(l.journals); n > 0; n-- {
		base := l.journals[n-1]
		data, err := l.read(journalName(base))
		if err != nil {
			return err
		}
		l.last = parseFile(data)
		if n == 1 || l.journals[n-2] < l.version || !l.last.unwritten(base) {
			return nil
		}
		l.begun = max(l.begun, base)
		l.journals = l.journals[:n-1]
	}
	return nil
}

// loadClosed reads the mark of a clean close, and notes as damage what has become of the journal since. A mark that is not whole is
// one that was being written.
func (l *loading) loadClosed() error {
	if !l.marked {
		return nil
	}
	data, err := l.read(closedName)
	if err != nil {
		return err
	}
	p := parseFile(data)
	switch {
	case errors.Is(p.err, ErrNewer):
		return fmt.Errorf("%s: %w", closedName, p.err)
	case p.length != p.size || len(p.frames) != 1 || p.frames[0].Closed == nil:
		return nil
	}
	l.closed = p.frames[0].Closed
	last, found := uint64(0), int64(0)
	if n := len(l.journals); n > 0 {
		last, found = l.journals[n-1], l.last.length
		if l.closed.describes(last, l.last) {
			return nil
		}
	}
	if last != l.closed.Base {
		found = 0
	}
	return l.note(journalName(l.closed.Base), min(l.last.size, found),
		fmt.Errorf("%w: it has %d bytes, and is not as it was closed, with %d", errFrame, found, l.closed.Size))
}

// unknown says that nothing is known from the present version to another.
func (l *loading) unknown(to uint64) error {
	return fmt.Errorf("%w: nothing is known of versions %d to %d", errFrame, l.version+1, to)
}

// note keeps what is damaged. What is newer than this program is none.
func (l *loading) note(name string, offset int64, err error) error {
	if errors.Is(err, ErrNewer) {
		return fmt.Errorf("%s at byte %d: %w", name, offset, err)
	}
	l.damage = append(l.damage, Damage{File: name, Offset: offset, Err: err})
	return nil
}

func (l *loading) loadSnapshot() error {
	if len(l.snapshots) == 0 {
		return nil
	}
	l.version = l.snapshots[len(l.snapshots)-1]
	l.base = l.version
	name := snapshotName(l.version)
	data, err := l.read(name)
	if err != nil {
		return err
	}
	l.snapshotSize = int64(len(data))
	p := parseFile(data)
	count := 0
	for _, f := range slices.Concat(p.frames, p.rest) {
		for _, w := range f.Writes {
			obj, err := w.decode(l.memory.table)
			if err != nil {
				if err := l.note(name, 0, err); err != nil {
					return err
				}
				continue
			}
			count++
			if err := l.put(obj, len(w.Object)); err != nil {
				return err
			}
		}
	}
	whole := p.err == nil && len(p.frames) > 1 && p.frames[0].Format == diskFormat && p.frames[0].Base == l.version &&
		p.frames[len(p.frames)-1].Objects == count+1
	if whole {
		return nil
	}
	return l.note(name, p.size, errors.Join(errFrame, p.err))
}

// chain returns the journals to be read, the oldest first.
func (l *loading) chain() []uint64 {
	first := 0
	if n := len(l.snapshots); n > 0 {
		first, _ = slices.BinarySearch(l.journals, l.snapshots[n-1])
	}
	// One journal before the snapshot is kept for the history.
	return l.journals[max(first-1, 0):]
}

// loadJournal reads the journal of a base, the i-th of the chain.
func (l *loading) loadJournal(base uint64, i int) error {
	name := journalName(base)
	p, err := l.parseJournal(base)
	if err != nil {
		return err
	}
	newest := base == l.journals[len(l.journals)-1]
	if !newest && base <= l.version && p.unwritten(base) {
		return nil // What was left out by readLast stays when it cannot be removed.
	}
	if err := l.checkTail(base, p); err != nil {
		return err
	}
	if len(p.frames) > 0 && (p.frames[0].Format != diskFormat || p.frames[0].Base != base) {
		return l.note(name, 0, fmt.Errorf("%w: it is no journal from version %d", errFrame, base))
	}
	at := base
	if i == 0 && base < l.version {
		l.base = base // It is history.
	} else if base != l.version {
		if err := l.note(name, 0, l.unknown(base)); err != nil {
			return err
		}
	}
	if err := l.replayAll(name, &at, p); err != nil {
		return err
	}
	if l.base == base && at < l.version {
		l.forget() // It is the journal before another that is gone.
	}
	return nil
}

// parseJournal reads a journal, but for the newest, which is read already.
func (l *loading) parseJournal(base uint64) (parsedFile, error) {
	if base == l.journals[len(l.journals)-1] {
		return l.last, nil
	}
	data, err := l.read(journalName(base))
	return parseFile(data), err
}

// replayAll does all writes of a journal again, also those behind a damage.
func (l *loading) replayAll(name string, at *uint64, p parsedFile) error {
	for _, f := range slices.Concat(p.frames, p.rest) {
		for _, w := range f.Writes {
			if err := l.replay(name, at, w); err != nil {
				return err
			}
		}
	}
	return nil
}

// forget forgets the history before the snapshot.
func (l *loading) forget() {
	l.base = l.version
	for _, kind := range l.memory.kinds {
		kind.log.writes = nil
	}
}

// checkTail tells damage from the end of a file that was being written when the power was cut. After a clean close there is no such
// end; loadClosed has noted what is wrong.
func (l *loading) checkTail(base uint64, p parsedFile) error {
	newest := base == l.journals[len(l.journals)-1]
	torn := len(p.rest) == 0 && (len(p.frames) > 0 || p.unwritten(base))
	if p.err == nil || newest && (torn || l.closed != nil) && !errors.Is(p.err, ErrNewer) {
		return nil
	}
	return l.note(journalName(base), p.size, p.err)
}

// replay does one write of a journal again, which is to follow on version at.
func (l *loading) replay(name string, at *uint64, w frameWrite) error {
	obj, err := w.decode(l.memory.table)
	if err == nil && w.Version != *at+1 {
		err = fmt.Errorf("%w: version %d comes after %d", errFrame, w.Version, *at)
	}
	*at = w.Version
	if err != nil {
		if err := l.note(name, 0, err); err != nil || obj == nil {
			return err
		}
	}
	key, err := l.memory.table.KeyOf(obj)
	if err != nil {
		return err
	}
	kind := l.memory.kinds[key.Kind]
	kind.log.append(memoryWrite{version: w.Version, event: w.Event, object: obj})
	if w.Version <= l.version {
		return nil // The snapshot knows.
	}
	l.version = w.Version
	if w.Event == Deleted {
		delete(kind.objects, key)
		delete(l.sizes, key)
		return nil
	}
	return l.put(obj, len(w.Object))
}

// put keeps an object.
func (l *loading) put(obj Object, size int) error {
	key, err := l.memory.table.KeyOf(obj)
	if err != nil {
		return err
	}
	l.memory.kinds[key.Kind].objects[key] = obj
	l.sizes[key] = int64(size)
	return nil
}

// encodeAt returns the JSON of an object as it will be stored at a version.
func encodeAt(obj Object, version uint64) ([]byte, error) {
	given := obj.GetResourceVersion()
	obj.SetResourceVersion(strconv.FormatUint(version, 10))
	_, encoded, err := encodeObject(obj)
	obj.SetResourceVersion(given)
	return encoded, err
}

// encodeObject returns the version of an object as it is stored, and its JSON.
func encodeObject(obj Object) (uint64, []byte, error) {
	version, err := strconv.ParseUint(obj.GetResourceVersion(), 10, 64)
	if err != nil {
		return 0, nil, fmt.Errorf("version of %q: %w", obj.GetName(), err)
	}
	encoded, err := json.Marshal(obj)
	if err != nil {
		return 0, nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return version, encoded, nil
}
