package journal

import (
	"errors"
	"io"
	"os"
	"runtime"
	"syscall"
)

// Files is what a program does to its directory, one system call in each method, in the order in which it must be done: a test
// cuts the power between any two.
type Files interface {
	// Create opens a file that is new or emptied.
	Create(name string) (File, error)
	// Reopen opens a file to go on with it.
	Reopen(name string) (File, error)
	// Read returns what is in a file.
	Read(name string) ([]byte, error)
	// Rename puts a file in the place of another, in one step.
	Rename(from, to string) error
	// Link gives a file a second name.
	Link(from, to string) error
	// Unlink removes a file.
	Unlink(name string) error
	// Sync makes durable which names there are.
	Sync() error
	// Names returns the names of all files.
	Names() ([]string, error)
}

// File is a file that is written at its end.
type File interface {
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

// Directory is the [Files] that the kernel offers.
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
		return nil, err // And no nil *os.File in an interface.
	}
	return kernelFile{f}, nil
}

// kernelFile is the File that the kernel offers.
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
		return nil // It has no such call.
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

// IsFull reports whether err says that there is no room.
func IsFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// IsLinked reports whether the file has a name still.
func (f kernelFile) IsLinked() (bool, error) { return isLinked(f.File) }
