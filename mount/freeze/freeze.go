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
// second after the limit, if this process was stopped. Without the programs of the guard (sh, tee and timeout of coreutils,
// fsfreeze of util-linux), or where they do not run, nothing is frozen, and the error matches [ErrNoGuard].
//
// The guard ignores SIGTERM, SIGINT and SIGHUP, which a supervisor may send to all processes of a unit. It dies with its process if
// both are killed together, as with a container whose first process this is. A caller that may be killed so writes down what it
// freezes, and calls [ThawLeft] at its next start. So does one that must survive a kill while the kernel freezes: a freeze that
// takes longer than the limit is undone as soon as it has succeeded, and by nobody if the process was killed in between.
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
	// ErrNoGuard says that a program of the guard is missing or does not run. Nothing is frozen.
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
// until Thaw has returned; while it is open, the mount is busy. The limit begins before the call of the kernel; where that takes
// longer, the error matches [ErrLimit] and nothing is frozen. If the filesystem cannot be frozen, as a tmpfs, the error matches
// mount.ErrUnsupported. Freeze may hang as long as the device does.
func Freeze(dir *os.File, limit time.Duration) (*Frozen, error) {
	if err := syncAll(dir); err != nil { // so that little is left to be written while writers wait
		return nil, err
	}
	begun := time.Now()
	guard, err := startGuard(dir, limit+time.Second)
	if err != nil {
		return nil, err
	}
	if err := freezeNow(dir); err != nil {
		guard.end()
		return nil, err
	}
	// A guard that has ended meanwhile has thawed nothing, since nothing was frozen.
	left := limit - time.Since(begun)
	if err := guard.check(); err != nil || left <= 0 {
		if err == nil {
			err = fmt.Errorf("FIFREEZE of %q took %v: %w", dir.Name(), time.Since(begun), ErrLimit)
		}
		_, thawErr := thawNow(dir)
		guard.end()
		return nil, errors.Join(err, thawErr)
	}
	f := &Frozen{dir: dir, guard: guard, stop: make(chan struct{}), done: make(chan struct{})}
	go f.keepLimit(left)
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

// Thaw thaws the filesystem. Nil proves that it was frozen from the return of Freeze until now. A second call returns what the
// first has returned. Where the kernel refuses, the guard tries once more.
func (f *Frozen) Thaw() error {
	f.once.Do(func() { f.err = f.thaw() })
	return f.err
}

func (f *Frozen) thaw() error {
	close(f.stop)
	<-f.done
	if f.expired { // It was thawed then; who has frozen it since is somebody else.
		f.guard.end()
		return ErrLimit
	}
	was, err := thawNow(f.dir)
	if err != nil {
		f.guard.thaw()
		return err
	}
	f.guard.end()
	if !was {
		return ErrThawed
	}
	return nil
}

// ThawLeft thaws the filesystem of dir, which a process that is gone may have left frozen. It reports whether it was.
func ThawLeft(dir *os.File) (was bool, err error) { return thawNow(dir) }
