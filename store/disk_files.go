package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
)

// diskFiles is what a [Disk] does to its directory, one system call in each method, in the order in which it must be done: a test
// cuts the power between any two.
type diskFiles interface {
	// create opens a file that is new or emptied.
	create(name string) (diskFile, error)
	// reopen opens a file to go on with it.
	reopen(name string) (diskFile, error)
	// read returns what is in a file.
	read(name string) ([]byte, error)
	// rename puts a file in the place of another, in one step.
	rename(from, to string) error
	// link gives a file a second name.
	link(from, to string) error
	// unlink removes a file.
	unlink(name string) error
	// sync makes durable which names there are.
	sync() error
	// names returns the names of all files.
	names() ([]string, error)
}

// diskFile is a file that is written at its end.
type diskFile interface {
	io.WriterAt
	// Sync makes durable what was written.
	Sync() error
	// Truncate cuts it off, and gives back what was reserved beyond.
	Truncate(size int64) error
	// Reserve has the bytes from one place to another need no more room on the disk, and leaves the file as long as it is. Where
	// the platform or the filesystem cannot, it does nothing.
	Reserve(from, to int64) error
	// Close ends it.
	Close() error
}

// directory is the diskFiles that the kernel offers.
type directory struct{ root *os.Root }

func (d directory) create(name string) (diskFile, error) {
	return d.open(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
}

func (d directory) reopen(name string) (diskFile, error) { return d.open(name, os.O_RDWR) }

func (d directory) read(name string) ([]byte, error) { return d.root.ReadFile(name) }

func (d directory) open(name string, flags int) (diskFile, error) {
	f, err := d.root.OpenFile(name, flags, 0o600)
	if err != nil {
		return nil, err // And no nil *os.File in an interface.
	}
	return kernelFile{f}, nil
}

// kernelFile is the diskFile that the kernel offers.
type kernelFile struct{ *os.File }

func (d directory) rename(from, to string) error { return d.root.Rename(from, to) }

func (d directory) link(from, to string) error { return d.root.Link(from, to) }

func (d directory) unlink(name string) error { return d.root.Remove(name) }

func (d directory) sync() error {
	if runtime.GOOS == "windows" {
		return nil // It has no such call.
	}
	f, err := d.root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (d directory) names() ([]string, error) {
	f, err := d.root.Open(".")
	if err != nil {
		return nil, err
	}
	names, err := f.Readdirnames(-1)
	return names, errors.Join(err, f.Close())
}

// isFull reports whether err says that there is no room.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// The names of files.
const (
	journalPrefix  = "journal-"
	snapshotPrefix = "snapshot-"
	unfinished     = "unfinished"
	closedName     = "closed"
	damagedPrefix  = "damaged-"
)

func journalName(base uint64) string  { return fmt.Sprintf("%s%020d", journalPrefix, base) }
func snapshotName(base uint64) string { return fmt.Sprintf("%s%020d", snapshotPrefix, base) }

// writeSnapshot makes a snapshot of objects durable, by way of another name, and returns its size. It sorts them.
func writeSnapshot(files diskFiles, base uint64, objects []Object) (int64, error) {
	sortObjects(objects)
	f, err := files.create(unfinished)
	if err != nil {
		return 0, err
	}
	size, err := writeObjects(f, base, objects)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = files.rename(unfinished, snapshotName(base))
	}
	if err != nil {
		_ = files.unlink(unfinished) // It may be what fills the disk. The next one empties it.
		return 0, fmt.Errorf("snapshot: %w", err)
	}
	return size, files.sync()
}

// writeClosed makes the mark of a clean close durable, or leaves none that can be read.
func writeClosed(files diskFiles, mark closedFrame) error {
	line, err := mark.line()
	if err != nil {
		return err
	}
	f, err := files.create(closedName)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(line, 0); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = files.sync()
	}
	if err != nil {
		return errors.Join(err, files.unlink(closedName))
	}
	return nil
}

// snapshotFrame is how many objects are in one frame of a snapshot, snapshotChunk how many bytes are written at a time.
const (
	snapshotFrame = 64
	snapshotChunk = 1 << 20
)

func writeObjects(f diskFile, base uint64, objects []Object) (int64, error) {
	at, buffer := int64(0), headFrame(base)
	flush := func() error {
		n, err := f.WriteAt(buffer, at)
		at, buffer = at+int64(n), buffer[:0]
		return err
	}
	var payload framePayload
	for i, obj := range objects {
		version, encoded, err := encodeObject(obj)
		if err != nil {
			return at, err
		}
		payload.add(version, Added, encoded)
		if i%snapshotFrame == snapshotFrame-1 {
			buffer = append(buffer, payload.line()...)
			payload = framePayload{}
		}
		if len(buffer) < snapshotChunk {
			continue
		}
		if err := flush(); err != nil {
			return at, err
		}
	}
	buffer = append(append(buffer, payload.line()...), endFrame(len(objects))...)
	return at, flush()
}

// absolute checks the path of a directory.
func absolute(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%q is no absolute path: %w", path, ErrInvalid)
	}
	return nil
}
