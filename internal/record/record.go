package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/volumekit/volumekit/internal/journal"
)

// The sentinels of this package.
var (
	// ErrLocked says that another Dir has the same path open.
	ErrLocked = errors.New("locked by another process or manager")
	// ErrUnsupported says that directories cannot be locked on this platform.
	ErrUnsupported = errors.ErrUnsupported
	// ErrUnsafe says that other users than this one and root could write records.
	ErrUnsafe = errors.New("other users can write there")
	// ErrNewer says that a newer program has written a record. This one must not change it. A function that checks payloads may
	// return it, too.
	ErrNewer = errors.New("written by a newer program")
	// ErrAside says that an earlier Dir has moved a damaged record aside.
	ErrAside = errors.New("an earlier start moved it aside: remove the file once its volume is dealt with")
	// ErrRemoved says that the log was removed while it was in use.
	ErrRemoved = fmt.Errorf("the log of records was removed, start again: %w", fs.ErrNotExist)
)

// Options configures a directory of records.
type Options struct {
	// Sync makes every write durable before it returns.
	Sync bool
}

// Dir is a locked directory of records. Its methods may be called from several goroutines at once. Writes of the same key must
// not run at the same time.
type Dir struct {
	files files
	root  *os.Root
	lock  directory

	mu sync.Mutex
	// waiting is the batch of the writers that wait; nil if no writer waits. The next leader writes it.
	waiting *batch

	// lead is a lock: its holder, the leader, is the one goroutine that reads or writes files. It guards the fields below.
	lead   chan struct{}
	closed bool
	// log is the open log, and file its file; nil before the first write.
	log  *journal.Journal
	file journal.File
	text []byte // a buffer for frames
	// index has the place of the record of each key in the log. removals is the number of bytes that the removal of all records
	// needs, live the number of bytes of the records.
	index    map[string]span
	removals int64
	live     int64
	base     int64 // the length of the log when it got its name
	due      int64 // the length at which the log is written anew
	least    int64 // the smallest value of due
	// found is the work that the last read has left, to be done before the next write; nil for none. unread says that nothing was
	// read yet, and unnamed that the name of the log may not be durable.
	found           *found
	unread, unnamed bool
	// early holds the damage that was found before Load was called.
	early []Damaged
	// left holds the names, by [fileName], of records that must not be overwritten: files, and records in the log.
	left map[string]struct{}
}

// Record is one record.
type Record struct {
	// Key is the key of the record.
	Key string
	// Payload is the last payload that was put for the key.
	Payload []byte
}

// Damaged is data that cannot be used as a record.
type Damaged struct {
	// Path is the absolute path of the file to which the data was moved, or of the file in which it was found if it was not moved.
	Path string
	// Err is the reason.
	Err error
}

// Open locks a directory, and makes it with mode 0700 if it is missing. The path must be absolute. If another Dir has the
// directory open, the error matches [ErrLocked]. If the directory belongs to another user than this one or root, or other users can
// write to it, the error matches [ErrUnsafe]: a Dir trusts what it reads.
func Open(path string, o Options) (*Dir, error) {
	if err := MakeDir(path, o); err != nil {
		return nil, fmt.Errorf("directory of records: %w", err)
	}
	locked, err := openDirectory(path)
	if err != nil {
		return nil, fmt.Errorf("directory of records: %w", err)
	}
	root, err := safeRoot(path, locked)
	if err != nil {
		return nil, fmt.Errorf("directory of records %q: %w", path, errors.Join(err, locked.fd.Close()))
	}
	d := newDir(files{path: path, disk: kernelDisk{Directory: journal.Directory{Root: root}, at: locked}, durable: o.Sync})
	d.root, d.lock = root, locked
	return d, nil
}

// newDir returns the Dir of a locked directory.
func newDir(in files) *Dir {
	return &Dir{
		files: in, lead: make(chan struct{}, 1), unread: true, least: leastLog,
		index: make(map[string]span), left: make(map[string]struct{}),
	}
}

// safeRoot opens the directory at path. It must be the locked one, and other users must not be able to write to it.
func safeRoot(path string, locked directory) (*os.Root, error) {
	if err := locked.checkOwner(); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	if same, err := isSame(root, locked); err != nil || !same {
		return nil, errors.Join(fmt.Errorf("it was replaced meanwhile: %w", ErrUnsafe), err, root.Close())
	}
	return root, nil
}

func isSame(root *os.Root, locked directory) (bool, error) {
	a, err := root.Stat(".")
	if err != nil {
		return false, err
	}
	b, err := locked.fd.Stat()
	return err == nil && os.SameFile(a, b), err
}

// MakeDir makes a directory, and those above it, if they are missing. With Sync it makes them durable: otherwise a power cut could
// remove the directory with the files that were synced in it.
func MakeDir(path string, o Options) error {
	above := filepath.Dir(path)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) || above == path {
		return err
	}
	if err := MakeDir(above, o); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if !o.Sync {
		return nil
	}
	f, err := os.Open(above)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Lock locks an existing directory against any other Lock or [Open] of it, until the result is closed. The path must be absolute.
// Lock writes nothing. If the directory is locked, the error matches [ErrLocked]. On a platform without such locks, it matches
// [ErrUnsupported].
func Lock(path string) (*os.File, error) {
	directory, err := openDirectory(path)
	if err != nil {
		return nil, err
	}
	return directory.fd, nil
}

// Path returns the path of the directory.
func (d *Dir) Path() string { return d.files.path }

// Close waits for the running writes and unlocks the directory. The records stay. If the log has grown or is damaged, Close writes
// it anew, unless the disk is full. It removes a log without records.
func (d *Dir) Close() error {
	d.lead <- struct{}{}
	defer func() { <-d.lead }()
	if d.closed {
		return fmt.Errorf("directory of records %q: %w", d.files.path, fs.ErrClosed)
	}
	d.closed = true
	if d.log != nil && d.found == nil && (d.log.Size() > d.base || d.log.IsBroken()) {
		_ = d.compact() // If this fails, the present log has the same records.
	}
	if d.isEmpty() {
		_ = d.removeLog() // If this fails, the log that stays has no records.
	}
	return errors.Join(d.closeLog(), d.lock.fd.Close(), d.root.Close())
}

// isEmpty reports whether the directory has no record, nor data that could be one.
func (d *Dir) isEmpty() bool {
	if d.unread || d.unnamed || len(d.index) > 0 || len(d.left) > 0 {
		return false
	}
	if f := d.found; f != nil && (f.aside || len(f.records) > 0 || len(f.files) > 0) {
		return false
	}
	return d.log == nil || !d.log.IsBroken()
}

// removeLog removes the log, and then the file that marks the directory for earlier versions. A killed Close may have left one of
// them.
func (d *Dir) removeLog() error {
	if !d.files.exists(logName) && !d.files.exists(newerMark) {
		return nil
	}
	if err := d.isThere(); err != nil {
		return err
	}
	if err := d.files.discard(logName); err != nil {
		return err
	}
	return errors.Join(d.files.discard(newerMark), d.files.sync())
}

func (d *Dir) closeLog() error {
	if d.log == nil {
		return nil
	}
	log := d.log
	d.log, d.file = nil, nil
	return log.Close()
}

// Mark makes an empty file in the directory, to record a fact about all records. name must have no slash and must not end like the
// name of a record.
func (d *Dir) Mark(name string) error {
	err := d.files.makeFile(name, nil)
	if err == nil {
		err = d.files.sync()
	}
	if err != nil {
		return fmt.Errorf("mark %q in %q: %w", name, d.files.path, err)
	}
	return nil
}

// IsMarked reports whether [Dir.Mark] was called with that name, also by an earlier process.
func (d *Dir) IsMarked(name string) bool { return d.files.exists(name) }
