//go:build linux || darwin

package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// directory is the descriptor of a directory, which is also what is locked.
type directory struct{ fd *os.File }

// call makes a system call until no signal interrupts it, and names the file in its error.
func call(op, name string, call func() error) error {
	for {
		err := call()
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EINTR):
			return &fs.PathError{Op: op, Path: name, Err: err}
		}
	}
}

// read returns the content of a file, no more than one byte beyond maxSize. It opens nothing but a regular file: no link is
// followed, and a pipe is not waited for.
func (d directory) read(name string) ([]byte, error) {
	var stat unix.Stat_t
	at := int(d.fd.Fd())
	err := call("fstatat", name, func() error { return unix.Fstatat(at, name, &stat, unix.AT_SYMLINK_NOFOLLOW) })
	switch {
	case err != nil:
		return nil, err
	case stat.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("%w: %q is no regular file, its mode is %#o", errDamaged, name, stat.Mode)
	case stat.Size > maxSize:
		return nil, fmt.Errorf("%w: %d bytes, more than %d", errDamaged, stat.Size, maxSize)
	}
	fd := -1
	err = call("openat", name, func() (err error) {
		fd, err = unix.Openat(at, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	content, err := readAll(fd, name, int(stat.Size)+1)
	return content, errors.Join(err, closeFile(fd, name))
}

// closeFile is not repeated: whatever it returns, the descriptor is gone.
func closeFile(fd int, name string) error {
	if err := unix.Close(fd); err != nil && !errors.Is(err, unix.EINTR) {
		return &fs.PathError{Op: "close", Path: name, Err: err}
	}
	return nil
}

// readAll reads up to limit bytes.
func readAll(fd int, name string, limit int) ([]byte, error) {
	content := make([]byte, limit)
	read := 0
	for {
		var n int
		err := call("read", name, func() (err error) {
			n, err = unix.Read(fd, content[read:])
			return err
		})
		if err != nil || n == 0 {
			return content[:read], err
		}
		read += n
	}
}

// openDirectory opens the directory at path and locks it. The lock ends with the descriptor, also when the process is
// killed, and leaves nothing behind; it needs no place to write to.
func openDirectory(path string) (directory, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return directory{}, err
	}
	err = call("flock", path, func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("%q: %w", path, ErrLocked)
	}
	if err != nil {
		return directory{}, errors.Join(err, f.Close())
	}
	return directory{fd: f}, nil
}

// checkOwner refuses a directory in which others could leave records.
func (d directory) checkOwner() error {
	info, err := d.fd.Stat()
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Errorf("its mode is %#o: chmod it to 0700: %w", mode, ErrUnsafe)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if ok && stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("it belongs to user %d and this is user %d: give a directory of its own: %w", stat.Uid, os.Geteuid(), ErrUnsafe)
	}
	return nil
}

// isUnreadable reports whether err is of a file that the disk cannot give back, rather than of a moment in which nothing
// can be read.
func isUnreadable(err error) bool {
	return errors.Is(err, unix.EIO) || errors.Is(err, unix.EBADMSG)
}
