package loop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Waiting for others: how long between two looks, and how often at most where the other should be gone in a moment.
const (
	pause      = 5 * time.Millisecond
	maxPause   = 50 * time.Millisecond
	maxAttempt = 64
)

// openFile opens a backing file for looking at it. O_NONBLOCK keeps a FIFO from waiting for its other end.
func openFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("backing file is a symbolic link: %w: %w", ErrNotRegular, err)
	}
	return file, err
}

// identity is what a backing file is known by.
type identity struct{ dev, ino uint64 }

// identify returns the identity of a regular file that still has a name.
func identify(file *os.File) (identity, error) {
	var st unix.Stat_t
	if err := control(file, func(fd int) error { return unix.Fstat(fd, &st) }); err != nil {
		return identity{}, fmt.Errorf("fstat of %q: %w", file.Name(), err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return identity{}, fmt.Errorf("backing file %q: %w", file.Name(), ErrNotRegular)
	}
	return identity{dev: st.Dev, ino: st.Ino}, nil
}

// named reports whether the file still has a name.
func named(file *os.File) (bool, error) {
	var st unix.Stat_t
	if err := control(file, func(fd int) error { return unix.Fstat(fd, &st) }); err != nil {
		return false, fmt.Errorf("fstat of %q: %w", file.Name(), err)
	}
	return st.Nlink > 0, nil
}

// reopen opens the very file again, as a description of its own. A lock on it ends with it, and a device that is given
// it keeps no lock of ours.
func reopen(file *os.File, flags int) (*os.File, error) {
	var again *os.File
	err := control(file, func(fd int) error {
		name := fmt.Sprintf("/proc/self/fd/%d", fd)
		newFD, err := unix.Open(name, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		again = os.NewFile(uintptr(newFD), file.Name())
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot open %q again through /proc: %w", file.Name(), err)
	}
	return again, nil
}

// locked calls do while the backing file is locked against every other user of this package.
func locked(ctx context.Context, file *os.File, do func() error) error {
	lock, err := reopen(file, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := flock(ctx, lock); err != nil {
		return err
	}
	return do()
}

// flock takes the exclusive lock on file, which ends when file is closed. It waits until ctx ends.
func flock(ctx context.Context, file *os.File) error {
	wait := newWaiter()
	for {
		err := tryFlock(file)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("cannot lock %q: %w", file.Name(), err)
		}
		if ctxErr := wait.next(ctx); ctxErr != nil {
			return fmt.Errorf("%q is locked by another attachment: %w", file.Name(), ctxErr)
		}
	}
}

func tryFlock(file *os.File) error {
	return control(file, func(fd int) error {
		return ignoringEINTR(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	})
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

// control calls f with the descriptor of file, which stays open meanwhile.
func control(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}

func ignoringEINTR(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
