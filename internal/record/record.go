package record

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
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
)

// Options says how a directory of records is kept.
type Options struct {
	// Sync makes every write durable before it returns.
	Sync bool
}

// Dir is a locked directory of records. Its methods may be called from several goroutines at once, but those that write
// the same key must take turns.
type Dir struct {
	path      string
	root      *os.Root
	directory directory
	disk      disk
	durable   bool
	temp      atomic.Uint64

	mu sync.Mutex
	// left holds the names of files that are no records of this program's and lie where they were.
	left map[string]struct{}
}

// Record is one record.
type Record struct {
	// Key is what Put was given.
	Key string
	// Payload is what Put was given.
	Payload []byte
}

// Damaged is a file that cannot be used as a record.
type Damaged struct {
	// Path is the absolute path to which the file was moved; where it lay when it was not moved.
	Path string
	// Err is what is wrong with it. It matches [ErrNewer] when nothing is, but that this program is too old.
	Err error
}

// Open opens and locks the directory at an absolute path. It is made, with mode 0700, when it is missing. A directory
// that is open elsewhere is an error that matches [ErrLocked]; one that belongs to another user than this one or root, or
// that others may write to, matches [ErrUnsafe], for what is read there is trusted.
func Open(path string, o Options) (*Dir, error) {
	if err := MakeDir(path, o); err != nil {
		return nil, fmt.Errorf("directory of records: %w", err)
	}
	directory, err := openDirectory(path)
	if err != nil {
		return nil, fmt.Errorf("directory of records: %w", err)
	}
	root, err := safeRoot(path, directory)
	if err != nil {
		return nil, fmt.Errorf("directory of records %q: %w", path, errors.Join(err, directory.fd.Close()))
	}
	return &Dir{
		path: path, root: root, directory: directory, disk: directory, durable: o.Sync, left: make(map[string]struct{}),
	}, nil
}

// safeRoot opens the directory at path, which must be the one that is locked, for what is not often done.
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
func Lock(path string) (io.Closer, error) {
	directory, err := openDirectory(path)
	if err != nil {
		return nil, err
	}
	return directory.fd, nil
}

// Path returns the path of the directory.
func (d *Dir) Path() string { return d.path }

// Close unlocks the directory. The records stay.
func (d *Dir) Close() error { return errors.Join(d.directory.fd.Close(), d.root.Close()) }

// Put writes the record of key, in place of an earlier one. After an error the earlier record or none is there, or the new
// one when only the sync failed.
func (d *Dir) Put(key string, payload []byte) error {
	content := encode(key, payload)
	if len(content) > maxSize {
		return fmt.Errorf("record of %q has %d bytes, more than %d", key, len(content), maxSize)
	}
	name := fileName(key)
	if err := d.makeWay(name); err != nil {
		return fmt.Errorf("record of %q in %q: %w", key, d.path, err)
	}
	temp := tempPrefix + strconv.FormatUint(d.temp.Add(1), 10) + "-" + name
	if err := d.replace(temp, name, content); err != nil {
		return fmt.Errorf("record of %q in %q: %w", key, d.path, errors.Join(err, d.discard(temp)))
	}
	if err := d.sync(); err != nil {
		return fmt.Errorf("record of %q in %q: %w", key, d.path, err)
	}
	return nil
}

// discard removes a file that may be missing.
func (d *Dir) discard(name string) error {
	if err := d.disk.unlink(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Remove removes the record of key. A missing one is no error. What lies in its place and was left there stays.
func (d *Dir) Remove(key string) error {
	name := fileName(key)
	if d.isLeft(name) {
		return nil
	}
	err := d.discard(name)
	if err == nil {
		err = d.sync()
	}
	if err != nil {
		return fmt.Errorf("record of %q in %q: %w", key, d.path, err)
	}
	return nil
}

// Mark makes an empty file beside the records, for what is true of all of them. name has no slash and does not end as the
// name of a record does.
func (d *Dir) Mark(name string) error {
	if err := errors.Join(d.write(name, nil), d.sync()); err != nil {
		return fmt.Errorf("mark %q in %q: %w", name, d.path, err)
	}
	return nil
}

// IsMarked reports whether [Dir.Mark] was called with that name.
func (d *Dir) IsMarked(name string) bool { return d.exists(name) }

func (d *Dir) exists(name string) bool {
	_, err := d.root.Lstat(name)
	return err == nil
}
