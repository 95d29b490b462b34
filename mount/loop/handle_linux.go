package loop

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/descriptor"
)

// handle is a descriptor of ours. It is used by one goroutine, which closes it.
type handle struct {
	fd   int
	name string
	// real is the path of the file as the kernel has it, where that is known without asking.
	real string
	// borrowed says that the description is the caller's, who must not get a lock of ours with it.
	borrowed bool
	// rdev is the number of the device, where it is the node of one that openNode has opened.
	rdev uint64
	// claimed says that this handle claims the device: no other program can claim or mount it, or give it a file.
	claimed bool
}

// open opens path without following a link at its end. O_NONBLOCK keeps a FIFO from waiting for its other end.
func open(path string, flags int) (handle, error) {
	fd := -1
	err := ignoringEINTR(func() (err error) {
		fd, err = unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		return err
	})
	if err != nil {
		return handle{}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return handle{fd: fd, name: path}, nil
}

// openReal is open for reading, and knows the real path of what it has opened when no part of path is a link. Where that
// is not so, or the kernel is older than 5.6, it is open.
func openReal(path string) (handle, error) {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK,
		Resolve: unix.RESOLVE_NO_SYMLINKS,
	}
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return open(path, unix.O_RDONLY)
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &how)
	if err != nil {
		return open(path, unix.O_RDONLY)
	}
	return handle{fd: fd, name: path, real: path}, nil
}

// close closes the descriptor. The kernel detaches a device with its last close.
func (h handle) close() { _ = unix.Close(h.fd) }

func (h handle) stat() (unix.Stat_t, error) {
	var st unix.Stat_t
	if err := ignoringEINTR(func() error { return unix.Fstat(h.fd, &st) }); err != nil {
		return st, fmt.Errorf("fstat of %q: %w", h.name, err)
	}
	return st, nil
}

// reopen opens the very file of a descriptor again, as a description of its own. A lock on it ends with it, and a device
// that is given it keeps no lock of ours.
func (h handle) reopen(flags int) (handle, error) {
	fd, err := unix.Open(h.proc(), flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return handle{}, fmt.Errorf("cannot open %q again through /proc: %w", h.name, err)
	}
	return handle{fd: fd, name: h.name, real: h.real}, nil
}

// proc is a path that leads to the very file of the descriptor.
func (h handle) proc() string { return "/proc/self/fd/" + strconv.Itoa(h.fd) }

// realPath returns the path of the file as the kernel has it, or nothing.
func (h handle) realPath() string {
	if h.real != "" {
		return h.real
	}
	path, err := os.Readlink(h.proc())
	if err != nil {
		return ""
	}
	return path
}

// ask makes an ioctl that returns a number of 64 bits.
func (h handle) ask(request uint) (uint64, error) {
	var value uint64
	err := ignoringEINTR(func() error {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(h.fd), uintptr(request), uintptr(unsafe.Pointer(&value)))
		if errno != 0 {
			return errno
		}
		return nil
	})
	return value, err
}

// withHandle calls do with the descriptor of a file of the caller's, which stays open meanwhile.
func withHandle[T any](file *os.File, do func(handle) (T, error)) (T, error) {
	var result T
	err := descriptor.With(file, func(fd int) (err error) {
		result, err = do(handle{fd: fd, name: file.Name(), borrowed: true})
		return err
	})
	return result, err
}

func ignoringEINTR(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
