package atomicwriter

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	// maxTries bounds what is done again because a call was interrupted or another process was quicker.
	maxTries = 128
	// entriesSize is how many bytes of directory entries are read at once.
	entriesSize = 8 << 10
	dirFlags    = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
)

// dir is an open directory. Its methods take the name of one entry, never a path, and follow no link.
type dir struct {
	fd   int
	path string // for errors
	w    *AtomicWriter
}

// openRoot opens the volume's directory, which may be a mount.
func (w *AtomicWriter) openRoot() (dir, error) {
	fd, err := retryOpen(func() (int, error) { return unix.Open(w.dir, dirFlags, 0) })
	if err != nil {
		return dir{}, fmt.Errorf("opening the volume's directory %q: %w", w.dir, err)
	}
	return dir{fd, w.dir, w}, nil
}

func (d dir) close() { _ = unix.Close(d.fd) } // nothing was written through it

// failed says which call on which name failed.
func (d dir) failed(call, name string, err error) error {
	return fmt.Errorf("%s %q: %w", call, filepath.Join(d.path, name), err)
}

// change makes a call that changes the world, and says what it was about when it fails.
func (d dir) change(call, name string, do func() error) error {
	if d.w.before != nil {
		if err := d.w.before(call, name); err != nil {
			return d.failed(call, name, err)
		}
	}
	if err := retry(do); err != nil {
		return d.failed(call, name, err)
	}
	return nil
}

// openDir opens a directory on the same mount. Everything else is an error: ENOTDIR and ELOOP for what is no directory,
// one that matches ErrForeign for a mount.
func (d dir) openDir(name string) (dir, error) {
	fd, err := d.open(name, dirFlags)
	if err != nil {
		return dir{}, d.failed("open", name, err)
	}
	return dir{fd, filepath.Join(d.path, name), d.w}, nil
}

// openFile opens a regular file on the same mount for reading. Nothing else is opened: to open a device is to use it.
func (d dir) openFile(name string) (fd int, err error) {
	at, err := d.open(name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC)
	if err != nil {
		return -1, d.failed("open", name, err)
	}
	defer func() { _ = unix.Close(at) }()
	var st unix.Stat_t
	if err := retry(func() error { return unix.Fstat(at, &st) }); err != nil {
		return -1, d.failed("stat", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return -1, d.failed("open", name, fmt.Errorf("no regular file: %w", ErrForeign))
	}
	fd, err = retryOpen(func() (int, error) {
		// Not blocking, for another process may hold a lease on the file.
		return unix.Open(fmt.Sprintf("/proc/self/fd/%d", at), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return -1, d.failed("open", name, err)
	}
	return fd, nil
}

func (d dir) open(name string, flags int) (int, error) {
	if !d.w.withoutOpenat2 {
		fd, err := retryOpen(func() (int, error) {
			return unix.Openat2(d.fd, name, &unix.OpenHow{
				Flags:   uint64(flags),
				Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
			})
		})
		switch {
		case errors.Is(err, unix.EXDEV):
			return -1, errMounted
		case !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM): // a sandbox says EPERM
			return fd, err
		}
	}
	return d.openOld(name, flags)
}

// errMounted says that a mount lies where one of the writer's own files or directories should.
var errMounted = fmt.Errorf("something is mounted here; unmount it: %w", ErrForeign)

// openOld is open for kernels without openat2 (before 5.6).
func (d dir) openOld(name string, flags int) (int, error) {
	fd, err := retryOpen(func() (int, error) { return unix.Openat(d.fd, name, flags, 0) })
	if err != nil {
		return -1, err
	}
	same, err := sameMount(d.fd, fd)
	if err == nil && !same {
		err = errMounted
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// stat looks at an entry itself. What the kernel knows is enough: no server is asked.
func (d dir) stat(name string) (unix.Statx_t, error) {
	var st unix.Statx_t
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	err := retry(func() error { return unix.Statx(d.fd, name, flags, unix.STATX_BASIC_STATS, &st) })
	if err != nil {
		return st, d.failed("stat", name, err)
	}
	return st, nil
}

// readLink returns where a link leads to. What is no link is an error that matches EINVAL.
func (d dir) readLink(name string) (string, error) {
	buf := make([]byte, maxPath+1)
	n := 0
	err := retry(func() (err error) {
		n, err = unix.Readlinkat(d.fd, name, buf)
		return err
	})
	if err != nil {
		return "", d.failed("readlink", name, err)
	}
	return string(buf[:n]), nil
}

// each calls do with the name of every entry. What is removed meanwhile may come or not.
func (d dir) each(do func(name string) error) error {
	if _, err := unix.Seek(d.fd, 0, 0); err != nil {
		return d.failed("rewind", "", err)
	}
	buf := make([]byte, entriesSize)
	for {
		n := 0
		err := retry(func() (err error) {
			n, err = unix.Getdents(d.fd, buf)
			return err
		})
		switch {
		case errors.Is(err, unix.ENOENT): // the directory was removed
			return nil
		case err != nil:
			return d.failed("readdir", "", err)
		case n == 0:
			return nil
		}
		_, _, names := unix.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			if err := do(name); err != nil {
				return err
			}
		}
	}
}

func (d dir) mkdir(name string) error {
	return d.change("mkdir", name, func() error { return unix.Mkdirat(d.fd, name, 0o700) })
}

func (d dir) symlink(target, name string) error {
	return d.change("symlink", name, func() error { return unix.Symlinkat(target, d.fd, name) })
}

func (d dir) rename(from, to string) error {
	return d.change("rename", to, func() error { return unix.Renameat(d.fd, from, d.fd, to) })
}

// unlink removes what is no directory; a directory is an error that matches EISDIR.
func (d dir) unlink(name string) error {
	return d.change("unlink", name, func() error { return mountedIfBusy(unix.Unlinkat(d.fd, name, 0)) })
}

// rmdir removes an empty directory.
func (d dir) rmdir(name string) error {
	return d.change("rmdir", name, func() error { return mountedIfBusy(unix.Unlinkat(d.fd, name, unix.AT_REMOVEDIR)) })
}

// sync waits until the names in the directory are on the disk.
func (d dir) sync() error { return d.change("fsync", "", func() error { return unix.Fsync(d.fd) }) }

func mountedIfBusy(err error) error {
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%w: %w", errMounted, err)
	}
	return err
}

// retry repeats a call that was interrupted, and one that openat2 asks to repeat.
func retry(call func() error) (err error) {
	for range maxTries {
		if err = call(); !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
	return err
}

func retryOpen(open func() (int, error)) (fd int, err error) {
	fd = -1
	err = retry(func() (err error) {
		fd, err = open()
		return err
	})
	return fd, err
}
