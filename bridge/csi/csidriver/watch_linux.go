package csidriver

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// watch waits for changes of a directory's entries.
type watch struct{ file *os.File }

func newWatch(dir string) (*watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	const changes = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ATTRIB | unix.IN_ONLYDIR
	if _, err := unix.InotifyAddWatch(fd, dir, changes); err != nil {
		return nil, errors.Join(&os.PathError{Op: "inotify_add_watch", Path: dir, Err: err}, unix.Close(fd))
	}
	return &watch{file: os.NewFile(uintptr(fd), "inotify")}, nil
}

// until sets the time limit of the next await; the zero time is none. Read the directory between the two: await returns
// at once if something has changed since.
func (w *watch) until(limit time.Time) error { return w.file.SetReadDeadline(limit) }

// await returns when something has changed, at the time limit, or when wake is called.
func (w *watch) await() error {
	buffer := make([]byte, 16*(unix.SizeofInotifyEvent+unix.NAME_MAX+1))
	_, err := w.file.Read(buffer) // A read of the directory shows the changes.
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// wake ends an await that runs, or the next one before another until.
func (w *watch) wake() { _ = w.file.SetReadDeadline(time.Unix(1, 0)) } // A closed watch does not wait.

func (w *watch) close() error { return w.file.Close() }
