// Package freeze freezes a mounted filesystem for a bounded time, so that a caller can copy its device.
//
//	frozen, err := freeze.Freeze(dir, 5*time.Second) // an open directory of the filesystem
//	// copy the device
//	err = frozen.Thaw()                              // nil: no process has written since Freeze returned
//
// [Freeze] syncs the filesystem before it freezes it. While the filesystem is frozen, the device has all earlier
// writes, writers wait in their system calls, and readers continue.
//
// # The bound
//
// The kernel thaws a filesystem only on request, and not at the end of the process that froze it. So Freeze first
// starts a guard: a small shell that waits for the end of a pipe and then runs fsfreeze. The filesystem is thawed by
// the first of these: Thaw; this process, after the limit; the guard, at the end of this process, also by SIGKILL; the
// guard, a second after the limit, if this process was stopped. If the programs of the guard are missing or do not run
// (sh, tee and timeout of coreutils, fsfreeze of util-linux), Freeze freezes nothing, and its error matches
// [ErrNoGuard].
//
// The guard ignores SIGTERM, SIGINT and SIGHUP, which a supervisor may send to all processes of a unit. If both
// processes are killed together, the guard cannot thaw: for example, in a container whose first process is this one. If
// that can happen to the caller, it must record what it freezes, and call [ThawLeft] at its next start. The same is
// true for a kill during the freeze itself: if the freeze takes longer than the limit, Freeze undoes it when it has
// succeeded, and nothing undoes it if the process was killed before.
//
// If another program thaws the filesystem early, Thaw returns an error that matches [ErrThawed]. A copy of that time
// must not be used.
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
	// ErrThawed says that the filesystem was thawed before Thaw was called, at the limit or by another program.
	ErrThawed = errors.New("the filesystem was thawed too early")
	// ErrLimit says that the limit had passed before Thaw was called. It matches [ErrThawed].
	ErrLimit = fmt.Errorf("the limit was over: %w", ErrThawed)
	// ErrFrozen says that another program has frozen the filesystem. It stays frozen.
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

// Freeze syncs and freezes the filesystem of dir, for at most limit. dir is an open directory of the filesystem. The
// caller keeps it open until Thaw has returned, and the mount is busy until then. The limit starts before the kernel's
// call; if that call takes longer, the error matches [ErrLimit] and nothing is frozen. If the filesystem cannot be
// frozen, such as a tmpfs, the error matches mount.ErrUnsupported. Freeze may hang as long as the device does.
func Freeze(dir *os.File, limit time.Duration) (*Frozen, error) {
	if err := syncAll(dir); err != nil { // then the freeze, during which writers wait, has little left to write
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
	// If the guard has ended meanwhile, it has thawed nothing, because nothing was frozen.
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

// Thaw thaws the filesystem. Nil proves that it was frozen from the return of Freeze until now. A second call returns
// the result of the first. If the kernel refuses, the guard tries once more.
func (f *Frozen) Thaw() error {
	f.once.Do(func() { f.err = f.thaw() })
	return f.err
}

func (f *Frozen) thaw() error {
	close(f.stop)
	<-f.done
	if f.expired { // It was thawed; another program has frozen it since.
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

// ThawLeft thaws the filesystem of dir, which an earlier process may have left frozen. It reports whether it was
// frozen.
func ThawLeft(dir *os.File) (was bool, err error) { return thawNow(dir) }
