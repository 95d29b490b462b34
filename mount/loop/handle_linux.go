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

// handle is an open descriptor. One goroutine uses and closes it.
type handle struct {
	fd   int
	name string
	// real is the path of the file in the kernel, if it is known without a system call.
	real string
	// fromCaller: the open file description is the caller's. A flock on it would stay after the call.
	fromCaller bool
	// rdev is the device number, if this is a node that nodes.open has opened.
	rdev uint64
	// exclusive: the device is open with O_EXCL. No other program can do the same, mount it, or give it a file.
	exclusive bool
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

// openReal is open for reading. If no part of path is a link, it also sets handle.real. This takes Linux 5.6.
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

// reopen opens the same file again, with an open file description of its own. A lock on it ends when it is closed. A device that
// gets this description as its backing file does not keep a lock.
func (h handle) reopen(flags int) (handle, error) {
	fd, err := unix.Open(h.proc(), flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return handle{}, fmt.Errorf("cannot open %q again through /proc: %w", h.name, err)
	}
	return handle{fd: fd, name: h.name, real: h.real}, nil
}

// proc is a path that leads to the same file as the descriptor.
func (h handle) proc() string { return "/proc/self/fd/" + strconv.Itoa(h.fd) }

// realPath returns the path of the file in the kernel, or "".
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

// ioctlUint64 calls an ioctl that returns a number of 64 bits.
func (h handle) ioctlUint64(request uint) (uint64, error) {
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

// withHandle calls do with the descriptor of the caller's file, which stays open meanwhile.
func withHandle[T any](file *os.File, do func(handle) (T, error)) (T, error) {
	var result T
	err := descriptor.With(file, func(fd int) (err error) {
		result, err = do(handle{fd: fd, name: file.Name(), fromCaller: true})
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
