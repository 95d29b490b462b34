package journal

import (
	"errors"
	"io"
	"os"
	"runtime"
	"syscall"
)

// Files has the system calls of a program on its directory, one for each method. A test can simulate a power cut between any two
// of them.
type Files interface {
	// Create creates a file, or truncates it if it exists, and opens it.
	Create(name string) (File, error)
	// Reopen opens an existing file for reading and writing.
	Reopen(name string) (File, error)
	// Read returns the content of a file.
	Read(name string) ([]byte, error)
	// Rename renames a file. It replaces a file with the new name atomically.
	Rename(from, to string) error
	// Link gives a file a second name.
	Link(from, to string) error
	// Unlink removes a file.
	Unlink(name string) error
	// Sync makes the names in the directory durable.
	Sync() error
	// Names returns the names of all files.
	Names() ([]string, error)
}

// File is an open file of [Files].
type File interface {
	io.WriterAt
	// Sync makes the content durable.
	Sync() error
	// Truncate sets the size, and releases the space that is reserved beyond it.
	Truncate(size int64) error
	// Reserve reserves space on the disk for the bytes between two offsets. It does not change the size of the file. It does nothing
	// if the platform or the filesystem cannot reserve space.
	Reserve(from, to int64) error
	// Close closes the file.
	Close() error
}

// Directory implements [Files] with the kernel's system calls.
type Directory struct {
	// Root is the directory.
	Root *os.Root
}

var _ Files = Directory{}

// Create implements [Files].
func (d Directory) Create(name string) (File, error) {
	return d.open(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
}

// Reopen implements [Files].
func (d Directory) Reopen(name string) (File, error) { return d.open(name, os.O_RDWR) }

// Read implements [Files].
func (d Directory) Read(name string) ([]byte, error) { return d.Root.ReadFile(name) }

func (d Directory) open(name string, flags int) (File, error) {
	f, err := d.Root.OpenFile(name, flags, 0o600)
	if err != nil {
		return nil, err // not a nil *os.File in the interface
	}
	return kernelFile{f}, nil
}

// kernelFile implements [File] with the kernel's system calls.
type kernelFile struct{ *os.File }

// Rename implements [Files].
func (d Directory) Rename(from, to string) error { return d.Root.Rename(from, to) }

// Link implements [Files].
func (d Directory) Link(from, to string) error { return d.Root.Link(from, to) }

// Unlink implements [Files].
func (d Directory) Unlink(name string) error { return d.Root.Remove(name) }

// Sync implements [Files].
func (d Directory) Sync() error {
	if runtime.GOOS == "windows" {
		return nil // Windows cannot sync a directory.
	}
	f, err := d.Root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Names implements [Files].
func (d Directory) Names() ([]string, error) {
	f, err := d.Root.Open(".")
	if err != nil {
		return nil, err
	}
	names, err := f.Readdirnames(-1)
	return names, errors.Join(err, f.Close())
}

// IsFull reports whether err says that the disk is full or a quota is reached.
func IsFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// IsLinked reports whether the file still has a name.
func (f kernelFile) IsLinked() (bool, error) { return isLinked(f.File) }
