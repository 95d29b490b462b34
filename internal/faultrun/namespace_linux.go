package faultrun

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Namespace is a mount namespace in which programs run one after the other. It is held by a descriptor of this process,
// so that it outlives all of them.
type Namespace struct{ file *os.File }

// NewNamespace returns a copy of this process's mount namespace. Nothing that is mounted there reaches any other.
func NewNamespace() (*Namespace, error) {
	var n Namespace
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		var err error
		n.file, err = os.Open("/proc/thread-self/ns/mnt")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("making a mount namespace: %w", err)
	}
	return &n, nil
}

// Do calls f on a thread that is in the namespace, and returns its error. What f starts in other goroutines is not in the
// namespace; processes that f starts are. f must not end its goroutine, as t.FailNow does.
func (n *Namespace) Do(f func() error) error {
	return onThread(func() error {
		if err := enter(n.file.Fd()); err != nil {
			return err
		}
		return f()
	})
}

// Close lets the namespace go, with everything that is mounted in it, unless a process is still there.
func (n *Namespace) Close() error { return n.file.Close() }

// enter moves the calling thread, which must be locked and about to end, into a mount namespace.
func enter(fd uintptr) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("entering a mount namespace: %w", err)
	}
	if err := unix.Setns(int(fd), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("entering a mount namespace: %w", err)
	}
	return nil
}

// errEnded says that a function ended its goroutine.
var errEnded = errors.New("the function ended its goroutine instead of returning")

// onThread calls f on a thread of its own, which ends with it. That is never the main thread, which does not end, and
// whose namespace is that of the process.
func onThread(f func() error) error {
	err := errEnded
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			err = onThread(f) // While this goroutine waits on the main thread, no other is there.
			runtime.UnlockOSThread()
			return
		}
		err = f()
	}()
	<-done
	return err
}
