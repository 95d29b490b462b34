package record

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/volumekit/volumekit/internal/journal"
)

const quarantineDir = "quarantine"

// Load reads every record. What a crash left half written is removed. What is damaged is moved aside and returned; what is newer
// is returned and stays. An error says that not everything is known: a record that cannot be read at this moment is not damaged.
//
// What cannot be read of the log counts as the end of a write that a crash broke off when nothing says that it was acknowledged,
// and it is as a crash leaves it. Every later frame says that all before it was acknowledged, and so does the head of what was in
// the log when it got its name, which is all after a [Dir.Close].
func (d *Dir) Load() ([]Record, []Damaged, error) {
	d.lead <- struct{}{}
	defer func() { <-d.lead }()
	records, damaged, err := d.load()
	if err != nil {
		return nil, nil, fmt.Errorf("records in %q: %w", d.files.path, err)
	}
	damaged = append(d.early, damaged...)
	d.early = nil
	return records, damaged, nil
}

// found is what has to be done with what was read before anything is written.
type found struct {
	// anew says that records are written to a new log. The present one is kept in the quarantine when aside says so.
	anew, aside bool
	records     []Record
	// log is the present one otherwise, as far as it counts, and length how long it is. rewrite says that nothing proves it to be
	// on the disk.
	log     []byte
	length  int64
	rewrite bool
	// files are those of earlier versions, which are in the log then.
	files []string
}

// load reads what there is, and does with it what has to be done where that can be done now.
func (d *Dir) load() ([]Record, []Damaged, error) {
	_ = d.closeLog() // Nothing is written to it any more.
	files, log, err := d.files.list()
	if err != nil {
		return nil, nil, err
	}
	old, damaged, err := d.readFiles(files)
	if err != nil {
		return nil, nil, err
	}
	d.index, d.removals, d.live, d.base = make(map[string]span), 0, 0, 0
	f, holes := &found{anew: true}, []Damaged(nil)
	if log {
		if f, holes, err = d.readLog(); err != nil {
			return nil, nil, err
		}
	}
	for _, r := range old { // They are in the log already, or a program of an earlier version has written them since.
		f.files = append(f.files, fileName(r.Key))
		f.records = slices.DeleteFunc(f.records, func(other Record) bool { return other.Key == r.Key })
	}
	f.records = append(f.records, old...)
	f.anew = f.anew || len(old) > 0
	slices.SortFunc(f.records, func(a, b Record) int { return cmp.Compare(a.Key, b.Key) })
	records := slices.Clone(f.records)
	d.found, d.unread = f, false
	newer := slices.ContainsFunc(holes, func(h Damaged) bool { return errors.Is(h.Err, ErrNewer) })
	if !newer && (len(f.files) > 0 || f.aside || log && (f.anew || f.rewrite)) {
		at := d.settleAside(holes)
		for i := range holes {
			holes[i].Path = at
		}
	}
	return records, append(damaged, holes...), nil
}

// settleAside settles what was found and returns where a log with damage is now.
func (d *Dir) settleAside(holes []Damaged) string {
	path := filepath.Join(d.files.path, logName)
	if len(holes) > 0 {
		at, err := d.files.linkAside(logName)
		if err != nil {
			return path
		}
		d.found.aside, path = false, at
	}
	_ = d.settle() // It is tried again before anything is written.
	return path
}

// settle does what has to be done with what was found.
func (d *Dir) settle() error {
	f := d.found
	if f == nil {
		return nil
	}
	if f.aside {
		if _, err := d.files.linkAside(logName); err != nil {
			return err
		}
		f.aside = false
	}
	var err error
	if f.anew {
		err = d.writeAnew(f.records)
	} else if d.log == nil {
		err = d.continueLog(f)
	}
	if err != nil {
		return err
	}
	f.anew, f.records = false, nil
	for _, name := range f.files {
		if err := d.files.discard(name); err != nil {
			return err
		}
	}
	if len(f.files) > 0 {
		if err := d.files.sync(); err != nil {
			return err
		}
	}
	d.found = nil
	return nil
}

// continueLog opens the log that was read, to append to it.
func (d *Dir) continueLog(f *found) error {
	file, err := d.files.disk.Reopen(logName)
	if err != nil {
		return err
	}
	log := journal.Continue(d.files.asSynced(file), f.log, f.length, d.files.logOptions())
	if f.rewrite {
		if err := log.Rewrite(f.log); err != nil {
			return errors.Join(err, log.Close())
		}
	}
	if err := d.files.sync(); err != nil { // Its name may not be durable.
		return errors.Join(err, log.Close())
	}
	d.log, d.file = log, file
	d.due = max(d.least, 2*d.base)
	return nil
}

// readLog reads the log and returns what has to be done with it.
func (d *Dir) readLog() (*found, []Damaged, error) {
	content, unreadable, err := d.logContent()
	if errors.Is(err, errDamaged) {
		return &found{anew: true}, []Damaged{d.quarantine(logName, err)}, nil
	} else if err != nil {
		return nil, nil, err
	}
	p, err := parseLog(content)
	if err != nil {
		return &found{anew: true, aside: true}, []Damaged{{Path: filepath.Join(d.files.path, logName), Err: err}}, nil //nolint:nilerr // It is told of as damage.
	}
	f := &found{log: content, length: int64(len(content)), rewrite: d.files.durable && int64(len(content)) > p.base}
	var holes []Damaged
	for _, h := range p.holes {
		switch {
		case unreadable == nil && p.isTorn(h) && h.to == f.length && len(p.holes) == 1:
			f.log = content[:h.from] // Nothing is behind it.
		case unreadable == nil && p.isTorn(h):
			f.anew = true
		default:
			f.anew, f.aside = true, true
			err := fmt.Errorf("log of records, bytes %d to %d: %w", h.from, h.to, errors.Join(h.err, unreadable))
			holes = append(holes, Damaged{Err: err})
		}
	}
	for _, at := range p.frames {
		d.enter(at.frame, at.span)
	}
	d.base = p.base
	f.records = d.counting(p)
	return f, holes, nil
}

// counting returns the records of a log that count.
func (d *Dir) counting(p parsedLog) []Record {
	records := make([]Record, 0, len(d.index))
	for _, at := range p.frames {
		if d.index[at.key] == at.span {
			records = append(records, Record{Key: at.key, Payload: at.payload})
		}
	}
	return records
}

// maxLog is how large a log may be. It bounds what a hostile file can cost.
const maxLog = 1 << 30

// logContent returns what is in the log. What the disk cannot give back of it are zeros, and why is unreadable.
func (d *Dir) logContent() (content []byte, unreadable, err error) {
	info, err := d.files.disk.stat(logName)
	switch {
	case err != nil:
		return nil, nil, err
	case !info.Mode().IsRegular():
		return nil, nil, fmt.Errorf("%w: %q is no regular file, its mode is %v", errDamaged, logName, info.Mode())
	case info.Size() > maxLog:
		return nil, nil, fmt.Errorf("%w: %q has %d bytes, more than %d", errDamaged, logName, info.Size(), maxLog)
	}
	content, err = d.files.disk.Read(logName)
	if err == nil || !isUnreadable(err) || d.root == nil {
		return content, nil, err
	}
	f, openErr := d.root.Open(logName)
	if openErr != nil {
		return nil, nil, errors.Join(err, openErr)
	}
	content, readErr := readPieces(f, info.Size())
	return content, err, errors.Join(readErr, f.Close())
}

// readPieces reads what can be read of a file that cannot be read as a whole, with zeros in the place of the rest.
func readPieces(f io.ReaderAt, size int64) ([]byte, error) {
	content := make([]byte, size)
	for at := int64(0); at < size; at += sector {
		piece := content[at:min(at+sector, size)]
		if n, err := f.ReadAt(piece, at); err != nil && n < len(piece) {
			clear(piece)
			if !isUnreadable(err) {
				return nil, err
			}
		}
	}
	return content, nil
}

// readFiles reads the files of earlier versions, several at once. What is damaged is moved aside and returned; what is newer, or
// cannot be read back, is returned and stays.
func (d *Dir) readFiles(names []string) ([]Record, []Damaged, error) {
	records, errs := make([]Record, len(names)), make([]error, len(names))
	inParallel(len(names), func(i int) { records[i], errs[i] = d.files.readFile(names[i]) })
	good := records[:0]
	var damaged []Damaged
	for i, name := range names {
		switch err := errs[i]; {
		case err == nil:
			good = append(good, records[i])
		case errors.Is(err, errDamaged), errors.Is(err, ErrNewer), isUnreadable(err):
			damaged = append(damaged, d.quarantine(name, err))
		default:
			return nil, nil, fmt.Errorf("record %q: %w", name, err)
		}
	}
	return good, damaged, nil
}

// inParallel calls do with 0 to n-1, on every processor.
func inParallel(n int, do func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), n) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	wg.Wait()
}

// Quarantine takes the record of key out of use, for a caller that cannot make sense of its payload, and returns where it
// lies now. It is moved aside; one that is newer by the word of reason, which then matches [ErrNewer], stays.
func (d *Dir) Quarantine(key string, reason error) Damaged {
	d.lead <- struct{}{}
	defer func() { <-d.lead }()
	if errors.Is(reason, ErrNewer) || isUnreadable(reason) {
		return d.leave(fileName(key), logName, reason)
	}
	err := d.ready()
	if err == nil {
		var at string
		if at, err = d.copyAside(key); err == nil {
			if err = d.append([]frame{{key: key, removed: true}}); err == nil {
				return Damaged{Path: at, Err: reason}
			}
		}
	}
	return d.leave(fileName(key), logName, errors.Join(reason, err))
}

// Aside returns the files in the quarantine, sorted by name. They stay there until a person removes them. Each has an error that
// matches [ErrAside].
func (d *Dir) Aside() ([]Damaged, error) {
	entries, err := fs.ReadDir(d.root.FS(), quarantineDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("records in %q: %w", d.files.path, err)
	}
	aside := make([]Damaged, 0, len(entries))
	for _, e := range entries {
		aside = append(aside, Damaged{Path: filepath.Join(d.files.path, quarantineDir, e.Name()), Err: ErrAside})
	}
	return aside, nil
}

// leave notes that a record, which is in a file, is not to be overwritten.
func (d *Dir) leave(name, file string, reason error) Damaged {
	d.left[name] = struct{}{}
	return Damaged{Path: filepath.Join(d.files.path, file), Err: reason}
}

// isLeft reports whether what is in the place of the record of key is to be left there.
func (d *Dir) isLeft(key string) bool {
	if len(d.left) == 0 {
		return false
	}
	_, left := d.left[fileName(key)]
	return left
}

// makeWay moves aside what was left where the record of key is about to be written.
func (d *Dir) makeWay(key string) error {
	if !d.isLeft(key) {
		return nil
	}
	var err error
	name := fileName(key)
	if d.files.exists(name) {
		_, err = d.files.moveAside(name)
	} else if _, there := d.index[key]; there {
		_, err = d.copyAside(key)
	}
	if err == nil {
		delete(d.left, name)
	}
	return err
}

// quarantine moves a file aside. One that cannot be moved stays, and so does one that may be good.
func (d *Dir) quarantine(name string, reason error) Damaged {
	if errors.Is(reason, ErrNewer) || isUnreadable(reason) {
		return d.leave(name, name, reason)
	}
	at, err := d.files.moveAside(name)
	if err != nil {
		return d.leave(name, name, errors.Join(reason, err))
	}
	return Damaged{Path: at, Err: reason}
}

// copyAside writes the record of key into the quarantine, as a file of its own, and returns its path there.
func (d *Dir) copyAside(key string) (string, error) {
	content, err := d.files.disk.Read(logName)
	if err != nil {
		return "", err
	}
	at, there := d.index[key]
	if !there || at.to > int64(len(content)) {
		return "", fs.ErrNotExist
	}
	f, _, err := parseFrame(content[at.from:at.to])
	if err != nil {
		return "", err
	}
	target, err := d.files.aside(fileName(key))
	if err != nil {
		return "", err
	}
	return filepath.Join(d.files.path, target), errors.Join(d.files.makeFile(target, encode(key, f.payload)), d.files.sync())
}

// Peek returns the records of the directory at path, by key, as far as they are whole. It takes no lock and changes nothing: a Dir
// may have the directory open. It is for tests and tools.
func Peek(path string) (map[string]string, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // Nothing was written.
	files := journal.Directory{Root: root}
	names, err := files.Names()
	if err != nil {
		return nil, err
	}
	records := make(map[string]string)
	if slices.Contains(names, logName) {
		if records, err = peekLog(files); err != nil {
			return nil, err
		}
	}
	for _, name := range names {
		if !strings.HasSuffix(name, suffix) || name == newerMark {
			continue
		}
		if content, err := files.Read(name); err == nil {
			if key, payload, err := decode(content); err == nil {
				records[key] = string(payload)
			}
		}
	}
	return records, nil
}

// peekLog returns the records of the log, by key.
func peekLog(files journal.Files) (map[string]string, error) {
	content, err := files.Read(logName)
	if err != nil {
		return nil, err
	}
	p, err := parseLog(content)
	if err != nil {
		return nil, err
	}
	records := make(map[string]string)
	for _, f := range p.frames {
		records[f.key] = string(f.payload)
		if f.removed {
			delete(records, f.key)
		}
	}
	return records, nil
}
