// Package freeze stops the writers of a mounted filesystem for a bounded time, so that the device beneath can be copied.
//
//	frozen, err := freeze.Freeze(dir, 5*time.Second) // an open directory of the filesystem
//	// copy the device
//	err = frozen.Thaw()                              // nil: nobody has written since Freeze returned
//
// Before it freezes, [Freeze] syncs the filesystem. While it is frozen, all that was written before is on the device, writers
// wait in their system calls, and readers go on.
//
// # The bound
//
// The kernel thaws a filesystem only when it is told to, and never because the process that froze it has ended. So Freeze first
// starts a guard: a small shell that waits for the end of a pipe and then runs fsfreeze. The filesystem is thawed by whichever
// comes first: Thaw; this process, when the limit is over; the guard, as soon as this process has ended, by SIGKILL too, or a
// second after the limit, if this process was stopped. Without the programs of the guard (sh, cat and timeout of coreutils,
// fsfreeze of util-linux) nothing is frozen, and the error matches [ErrNoGuard].
//
// A guard dies with its process if both are killed together, as with a container. A caller that may be killed so writes down
// what it freezes, and calls [ThawLeft] at its next start.
//
// Who thaws a filesystem early, such as an administrator, makes Thaw return an error that matches [ErrThawed]. A copy of that
// time is of no use.
package freeze

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// The errors of this package. Match them with errors.Is.
var (
	// ErrThawed says that the filesystem was thawed before Thaw was called: the limit was over, or someone else did it.
	ErrThawed = errors.New("the filesystem was thawed too early")
	// ErrLimit says that the limit was over before Thaw was called. It matches [ErrThawed].
	ErrLimit = fmt.Errorf("the limit was over: %w", ErrThawed)
	// ErrFrozen says that someone else has frozen the filesystem. It was left so.
	ErrFrozen = errors.New("the filesystem is frozen by another program")
	// ErrNoGuard says that a program of the guard is missing. Nothing was frozen.
	ErrNoGuard = errors.New("no program that thaws the filesystem if this one is killed")
)

// Frozen is a frozen filesystem. It belongs to the goroutine that made it.
type Frozen struct {
	dir   *os.File
	guard *guard
	stop  chan struct{}
	done  chan struct{}
	// expired is true when the goroutine has ended because the limit was over.
	expired bool
	once    sync.Once
	err     error
}

// Freeze syncs and freezes the filesystem of dir, for at most limit. dir is an open directory of it, which the caller keeps open
// until Thaw has returned; while it is open, the mount is busy. The limit begins with the call of the kernel. If the filesystem
// cannot be frozen, as a tmpfs, the error matches mount.ErrUnsupported. Freeze may hang as long as the device does.
func Freeze(dir *os.File, limit time.Duration) (*Frozen, error) {
	guard, err := startGuard(dir, limit+time.Second)
	if err != nil {
		return nil, err
	}
	if err := syncAll(dir); err != nil { // so that little is left to be written while writers wait
		guard.end()
		return nil, err
	}
	f := &Frozen{dir: dir, guard: guard, stop: make(chan struct{}), done: make(chan struct{})}
	go f.keepLimit(limit)
	if err := freezeNow(dir); err != nil {
		f.end()
		return nil, err
	}
	return f, nil
}

// keepLimit thaws the filesystem when the limit is over.
func (f *Frozen) keepLimit(limit time.Duration) {
	defer close(f.done)
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-timer.C:
		f.expired = true
		_, _ = thawNow(f.dir)
	case <-f.stop:
	}
}

// end ends the goroutine and the guard, neither of which thaws any more.
func (f *Frozen) end() {
	close(f.stop)
	<-f.done
	f.guard.end()
}

// Thaw thaws the filesystem. Nil proves that it was frozen from the return of Freeze until now. A second call returns what the
// first has returned.
func (f *Frozen) Thaw() error {
	f.once.Do(func() {
		was, err := thawNow(f.dir)
		f.end()
		switch {
		case err != nil || was:
		case f.expired:
			err = ErrLimit
		default:
			err = ErrThawed
		}
		f.err = err
	})
	return f.err
}

// ThawLeft thaws the filesystem of dir, which a process that is gone may have left frozen. It reports whether it was.
func ThawLeft(dir *os.File) (was bool, err error) { return thawNow(dir) }
