package loop

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
)

// withPath calls do with the file at path, open for reading. Only looking is done with it: it is opened again for more.
func withPath(ctx context.Context, path string, do func(handle) (Device, error)) (Device, error) {
	if err := abandonable.Begin(ctx, "open"); err != nil {
		return Device{}, err
	}
	opened, err := openReal(path)
	if errors.Is(err, unix.ELOOP) {
		return Device{}, fmt.Errorf("backing file is a symbolic link: %w: %w", ErrNotRegular, err)
	}
	if err != nil {
		return Device{}, err
	}
	defer opened.close()
	return do(opened)
}

// backing is a file that is, or is to be, attached.
type backing struct {
	handle
	id   identity
	size int64
	// links is how many names the file has: none when it was deleted.
	links uint64
}

// regular looks at a file that must be regular. The filesystem is asked, so that one that hangs does so here and not in
// the midst of an attachment, with a device of the machine in its hands.
func regular(ctx context.Context, file handle) (backing, error) {
	st, err := statRegular(ctx, file)
	if err != nil {
		return backing{}, err
	}
	return currentBacking(file, st)
}

// currentBacking asks how long the file is now and how many names it has. st is an earlier answer, for what never changes.
func currentBacking(file handle, st unix.Stat_t) (backing, error) {
	var size int64
	var links uint64
	var fresh unix.Statx_t
	flags := unix.AT_EMPTY_PATH | unix.AT_STATX_FORCE_SYNC
	err := ignoringEINTR(func() error { return unix.Statx(file.fd, "", flags, unix.STATX_SIZE|unix.STATX_NLINK, &fresh) })
	switch {
	case err == nil:
		size, links = int64(fresh.Size), uint64(fresh.Nlink)
	case errors.Is(err, unix.ENOSYS):
		now, err := file.stat()
		if err != nil {
			return backing{}, err
		}
		size, links = now.Size, uint64(now.Nlink) //nolint:unconvert // narrower elsewhere
	default:
		return backing{}, fmt.Errorf("statx of %q: %w", file.name, err)
	}
	return backing{handle: file, id: identity{dev: st.Dev, ino: st.Ino}, size: size, links: links}, nil
}

func statRegular(ctx context.Context, file handle) (unix.Stat_t, error) {
	if err := abandonable.Begin(ctx, "fstat"); err != nil {
		return unix.Stat_t{}, err
	}
	st, err := file.stat()
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = fmt.Errorf("backing file %q: %w", file.name, ErrNotRegular)
	}
	return st, err
}

// How long to wait between two attempts, and how many attempts to make if another process should end its use in a moment.
const (
	pause      = 200 * time.Microsecond
	maxPause   = 50 * time.Millisecond
	maxAttempt = 64
)

// lock locks a backing file against every other user of this package. unlock releases the lock, unless the file is this package's
// own: then closing the file does.
func lock(ctx context.Context, file handle) (unlock func(), err error) {
	if err := abandonable.Begin(ctx, "flock"); err != nil {
		return nil, err
	}
	if !file.fromCaller {
		return func() {}, flock(ctx, file)
	}
	locked, err := file.reopen(unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	if err := flock(ctx, locked); err != nil {
		locked.close()
		return nil, err
	}
	return locked.close, nil
}

// flock takes the exclusive lock on a file, and waits for it until ctx ends.
func flock(ctx context.Context, file handle) error {
	wait := newWaiter()
	for {
		err := ignoringEINTR(func() error { return unix.Flock(file.fd, unix.LOCK_EX|unix.LOCK_NB) })
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("cannot lock %q: %w", file.name, err)
		}
		if ctxErr := wait.next(ctx); ctxErr != nil {
			return fmt.Errorf("%q is locked by another attachment: %w", file.name, ctxErr)
		}
	}
}

// waiter waits a little longer each time.
type waiter struct{ d time.Duration }

func newWaiter() *waiter { return &waiter{d: pause} }

// next waits, or returns the error of ctx when that ends first.
func (w *waiter) next(ctx context.Context) error {
	timer := time.NewTimer(w.d)
	defer timer.Stop()
	w.d = min(2*w.d, maxPause)
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (d Device) holds(other Device) bool {
	return d.BackingRdev != 0 && d.BackingRdev == unix.Mkdev(other.Major, other.Minor)
}

func (d Device) has(info os.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && d.BackingDevice == uint64(st.Dev) && d.BackingInode == st.Ino //nolint:unconvert // narrower elsewhere
}

// isGone reports whether err says that a device is free, or is no device any more.
func isGone(err error) bool {
	return errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV)
}

// isMissing reports whether err says that a path leads nowhere.
func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENODEV)
}
