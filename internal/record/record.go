package record

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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
)

const (
	lockName      = "lock"
	quarantineDir = "quarantine"
)

// Options says how a directory of records is kept.
type Options struct {
	// Sync makes every write durable before it returns.
	Sync bool
}

// Dir is a locked directory of records. Its methods may be called from several goroutines at once, but those that write
// the same key must take turns.
type Dir struct {
	path string
	root *os.Root
	lock *os.File
	sync bool
	temp atomic.Uint64
}

// Record is one record.
type Record struct {
	// Key is what Put was given.
	Key string
	// Payload is what Put was given.
	Payload []byte
}

// Damaged is a file that is no record.
type Damaged struct {
	// Path is the absolute path to which the file was moved; where it lay when it could not be moved.
	Path string
	// Err is what is wrong with it.
	Err error
}

// Open opens and locks the directory at an absolute path. It is made, with mode 0700, when it is missing. A directory
// that is open elsewhere is an error that matches [ErrLocked]; one that belongs to another user than this one or root, or
// that others may write to, matches [ErrUnsafe], for what is read there is trusted.
func Open(path string, o Options) (*Dir, error) {
	if err := makeDir(path, o); err != nil {
		return nil, fmt.Errorf("directory of records: %w", err)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("directory of records: %w", err)
	}
	lock, err := safeLockIn(root)
	if err != nil {
		return nil, fmt.Errorf("directory of records %q: %w", path, errors.Join(err, root.Close()))
	}
	return &Dir{path: path, root: root, lock: lock, sync: o.Sync}, nil
}

// makeDir makes a directory, and those above it, when it is missing. With Sync they are on the disk when it returns: what
// is synced into a directory that a power cut takes away is lost.
func makeDir(path string, o Options) error {
	above := filepath.Dir(path)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) || above == path {
		return err
	}
	if err := makeDir(above, o); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if !o.Sync {
		return nil
	}
	return syncOpened(os.Open(above))
}

// syncOpened syncs and closes a directory.
func syncOpened(f *os.File, err error) error {
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func safeLockIn(root *os.Root) (*os.File, error) {
	info, err := root.Stat(".")
	if err != nil {
		return nil, err
	}
	if err := checkOwner(info); err != nil {
		return nil, err
	}
	return lockIn(root)
}

func lockIn(root *os.Root) (*os.File, error) {
	f, err := root.OpenFile(lockName, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lockFile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Path returns the path of the directory.
func (d *Dir) Path() string { return d.path }

// Close unlocks the directory. The records stay.
func (d *Dir) Close() error { return errors.Join(d.lock.Close(), d.root.Close()) }

// Put writes the record of key, in place of an earlier one. After an error the earlier record, or none, is there.
func (d *Dir) Put(key string, payload []byte) error {
	content := encode(key, payload)
	if len(content) > maxSize {
		return fmt.Errorf("record of %q has %d bytes, more than %d", key, len(content), maxSize)
	}
	name := fileName(key)
	temp := fmt.Sprintf("%s%d-%s", tempPrefix, d.temp.Add(1), name)
	if err := d.write(temp, content); err != nil {
		return fmt.Errorf("record of %q in %q: %w", key, d.path, errors.Join(err, d.discard(temp)))
	}
	if err := d.root.Rename(temp, name); err != nil {
		return fmt.Errorf("record of %q in %q: %w", key, d.path, errors.Join(err, d.discard(temp)))
	}
	return d.syncDir()
}

func (d *Dir) write(name string, content []byte) error {
	f, err := d.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil && d.sync {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// discard removes a file that may be missing.
func (d *Dir) discard(name string) error {
	if err := d.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Remove removes the record of key. A missing one is no error.
func (d *Dir) Remove(key string) error {
	if err := d.discard(fileName(key)); err != nil {
		return fmt.Errorf("record of %q in %q: %w", key, d.path, err)
	}
	return d.syncDir()
}

func (d *Dir) syncDir() error {
	if !d.sync {
		return nil
	}
	if err := syncOpened(d.root.Open(".")); err != nil {
		return fmt.Errorf("sync of %q: %w", d.path, err)
	}
	return nil
}

// Load reads every record. What a crash left half written is removed; what is damaged is moved aside and returned. An
// error says that the directory or a file could not be read, so that not everything is known: a record that cannot be
// read now is not damaged, and stays.
func (d *Dir) Load() ([]Record, []Damaged, error) {
	entries, err := d.list()
	if err != nil {
		return nil, nil, fmt.Errorf("records in %q: %w", d.path, err)
	}
	return d.readAll(entries)
}

// list returns what lies in the directory.
func (d *Dir) list() ([]fs.DirEntry, error) {
	f, err := d.root.Open(".")
	if err != nil {
		return nil, err
	}
	entries, err := f.ReadDir(-1)
	return entries, errors.Join(err, f.Close())
}

func (d *Dir) readAll(entries []fs.DirEntry) ([]Record, []Damaged, error) {
	var records []Record
	var damaged []Damaged
	for _, e := range entries {
		switch name := e.Name(); {
		case strings.HasPrefix(name, tempPrefix):
			if err := d.discard(name); err != nil {
				damaged = append(damaged, Damaged{Path: filepath.Join(d.path, name), Err: err})
			}
		case strings.HasSuffix(name, suffix):
			r, err := d.read(name)
			if err != nil && !errors.Is(err, errDamaged) {
				return nil, nil, fmt.Errorf("record %q in %q: %w", name, d.path, err)
			}
			if err != nil {
				damaged = append(damaged, d.quarantine(name, err))
				continue
			}
			records = append(records, r)
		}
	}
	return records, damaged, nil
}

// read reads one file. It follows no link and reads no more than a record can have.
func (d *Dir) read(name string) (Record, error) {
	info, err := d.root.Lstat(name)
	if err != nil {
		return Record{}, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxSize {
		return Record{}, fmt.Errorf("%w: %s of %d bytes", errDamaged, info.Mode().Type(), info.Size())
	}
	f, err := d.root.Open(name)
	if err != nil {
		return Record{}, err
	}
	content, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return Record{}, err
	}
	key, payload, err := decode(content)
	if err != nil {
		return Record{}, err
	}
	if fileName(key) != name {
		return Record{}, fmt.Errorf("%w: it is the record of %q under another name", errDamaged, key)
	}
	return Record{Key: key, Payload: payload}, nil
}

// Quarantine moves the record of key aside, for a caller that cannot make sense of its payload, and returns where it
// lies now.
func (d *Dir) Quarantine(key string, reason error) Damaged {
	return d.quarantine(fileName(key), reason)
}

// quarantine moves a file aside under a name that is free.
func (d *Dir) quarantine(name string, reason error) Damaged {
	at := Damaged{Path: filepath.Join(d.path, name), Err: reason}
	if err := d.root.Mkdir(quarantineDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		at.Err = errors.Join(reason, err)
		return at
	}
	target := filepath.Join(quarantineDir, name)
	for i := 1; d.exists(target); i++ {
		target = filepath.Join(quarantineDir, fmt.Sprintf("%s.%d", name, i))
	}
	if err := errors.Join(d.root.Rename(name, target), d.syncDir()); err != nil {
		at.Err = errors.Join(reason, err)
		return at
	}
	at.Path = filepath.Join(d.path, target)
	return at
}

func (d *Dir) exists(name string) bool {
	_, err := d.root.Lstat(name)
	return err == nil
}
