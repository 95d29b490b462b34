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
	// ErrUnsafe says that others than this user and root could write records of their own.
	ErrUnsafe = errors.New("others may write there")
	// ErrNewer says that a record is of a newer program than this one, which has to leave it alone. What checks payloads
	// may return it too.
	ErrNewer = errors.New("written by a newer program")
	// ErrRemoved says that the log was removed while it was in use.
	ErrRemoved = fmt.Errorf("the log of records was removed, start again: %w", fs.ErrNotExist)
)

// Options says how a directory of records is kept.
type Options struct {
	// Sync makes every write durable before it returns.
	Sync bool
}

// Dir is a locked directory of records. Its methods may be called from several goroutines at once, but those that write
// the same key must take turns.
type Dir struct {
	files files
	root  *os.Root
	lock  directory

	mu sync.Mutex
	// waiting is what the next who leads writes; nil when no writer waits.
	waiting *batch

	// lead is taken by the one goroutine that reads or writes files. It owns what follows.
	lead   chan struct{}
	closed bool
	// log is the open log, nil before the first write; file is what it is written by.
	log  *journal.Journal
	file journal.File
	text []byte // what is written, to be used again
	// index says where the record of each key is in the log. removals is how much room their removal needs, live how much they
	// take.
	index    map[string]span
	removals int64
	live     int64
	base     int64 // how long the log was when it got its name
	due      int64 // how long the log may become before it is written anew
	least    int64 // how long it becomes at least
	// found is what has to be done with what was read before anything is written; nil: nothing has. unread says that nothing was
	// read yet, and unnamed that the name of the log may not be durable.
	found           *found
	unread, unnamed bool
	// early is what was found damaged before Load was called.
	early []Damaged
	// left holds the names, by [fileName], of records that are not to be overwritten: files, and records in the log.
	left map[string]struct{}
}

// Record is one record.
type Record struct {
	// Key is what Put was given.
	Key string
	// Payload is what Put was given.
	Payload []byte
}

// Damaged is what cannot be used as a record.
type Damaged struct {
	// Path is the absolute path of a file with it, which was moved aside; where it lay when it was not moved.
	Path string
	// Err says why.
	Err error
}

// Open makes a directory when it is missing, with mode 0700, and locks it. The path must be absolute. A directory that is
// locked elsewhere is an error that matches [ErrLocked]; one that belongs to another user than this one or root, or
// that others may write to, matches [ErrUnsafe], for what is read there is trusted.
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

// newDir returns a directory that is locked.
func newDir(in files) *Dir {
	return &Dir{
		files: in, lead: make(chan struct{}, 1), unread: true, least: leastLog,
		index: make(map[string]span), left: make(map[string]struct{}),
	}
}

// safeRoot opens the directory at path, which must be the one that is locked.
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

// MakeDir makes a directory, and those above it, when it is missing. With Sync they are on the disk when it returns: what
// is synced into a directory that a power cut takes away is lost.
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

// Lock locks the directory at an absolute path, which must be there, against any other Lock or [Open] of it until it is
// closed. Nothing is written. One that is locked is an error that matches [ErrLocked], and on a platform without such locks
// the error matches [ErrUnsupported].
func Lock(path string) (*os.File, error) {
	directory, err := openDirectory(path)
	if err != nil {
		return nil, err
	}
	return directory.fd, nil
}

// Path returns the path of the directory.
func (d *Dir) Path() string { return d.files.path }

// Close unlocks the directory, after the writes that wait. The records stay: in a log of which all is proven, where there is room
// for that. A log without records is removed.
func (d *Dir) Close() error {
	d.lead <- struct{}{}
	defer func() { <-d.lead }()
	if d.closed {
		return fmt.Errorf("directory of records %q: %w", d.files.path, fs.ErrClosed)
	}
	d.closed = true
	if d.log != nil && d.found == nil && (d.log.Size() > d.base || d.log.IsBroken()) {
		_ = d.compact() // The log as it is says the same.
	}
	if d.isEmpty() {
		_ = d.removeLog() // So does a log that stays.
	}
	return errors.Join(d.closeLog(), d.lock.fd.Close(), d.root.Close())
}

// isEmpty reports whether no record is known, and nothing that could be one is in the log.
func (d *Dir) isEmpty() bool {
	if d.unread || d.unnamed || len(d.index) > 0 || len(d.left) > 0 {
		return false
	}
	if f := d.found; f != nil && (f.aside || len(f.records) > 0 || len(f.files) > 0) {
		return false
	}
	return d.log == nil || !d.log.IsBroken()
}

// removeLog removes the log, and then what tells earlier versions of it. A Close that was killed may have left one of them.
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

// Mark makes an empty file beside the records, for what is true of all of them. name has no slash and does not end as the
// name of a record does.
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

// IsMarked reports whether [Dir.Mark] was called with that name.
func (d *Dir) IsMarked(name string) bool { return d.files.exists(name) }
