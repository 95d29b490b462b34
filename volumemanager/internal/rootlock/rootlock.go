// Package rootlock locks the directory above all volumes of a node. A second manager, with other records or without any,
// then cannot work on the same volumes. It also finds out that another directory has taken the place of the locked one.
package rootlock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/keylock"
)

// rootMode is the mode of a root that Take makes. Plugins make the directories below it with the same mode.
const rootMode = 0o750

// ErrReplaced matches the error for a root that is not at its path any more: it was moved or removed, or a mount hides it.
var ErrReplaced = errors.New("the root was moved, removed or hidden by a mount")

// Lock locks one root, from the first Take to Release. The zero value locks nothing.
type Lock struct {
	// Path is the root's path. If it is empty nothing is locked.
	Path string
	// Make says that Take makes a missing root, because another manager may start at any time. Otherwise a missing root is
	// not locked.
	Make bool
	// HasRecords says that the root is a directory of records, which has a lock of its own. Take then only remembers the root.
	HasRecords bool

	locks keylock.Locks[struct{}]
	root  atomic.Pointer[root] // the locked one; locks guards its changes

	mu sync.Mutex
	// hung is closed when the last check that was abandoned has returned.
	hung <-chan struct{}
}

// root is a locked directory. Its number belongs to no other directory as long as it is open.
type root struct {
	dir    *os.File
	number fs.FileInfo
}

// Take locks the root, unless this Lock holds it already: then it is [Lock.Check]. If another manager has locked the root, the
// error matches [volume.ErrInUse].
func (l *Lock) Take(ctx context.Context) error {
	if l.Path == "" || l.root.Load() != nil {
		return l.Check(ctx)
	}
	release, _ := l.locks.Take(nil, struct{}{})
	defer release()
	if l.root.Load() != nil {
		return nil
	}
	if l.Make {
		if err := os.MkdirAll(l.Path, rootMode); err != nil {
			return fmt.Errorf("the root of all volumes cannot be made, and so not be locked: %w", err)
		}
	}
	locked, err := l.open()
	switch {
	case errors.Is(err, fs.ErrNotExist) && !l.Make:
		return nil
	case errors.Is(err, record.ErrUnsupported):
		return nil // Such a platform cannot mount volumes either.
	case errors.Is(err, record.ErrLocked):
		return fmt.Errorf("another volume manager works on the volumes under %q: stop it, or give this one another root: %w: %w", l.Path, err, volume.ErrInUse)
	case err != nil:
		return fmt.Errorf("lock on the volumes under %q: %w", l.Path, err)
	}
	l.root.Store(locked)
	return nil
}

func (l *Lock) open() (*root, error) {
	open := record.Lock
	if l.HasRecords {
		open = os.Open
	}
	dir, err := open(l.Path)
	if err != nil {
		return nil, err
	}
	number, err := dir.Stat()
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return &root{dir, number}, nil
}

// Check returns an error that matches [ErrReplaced] if another directory than the locked one, or none, is at the root's path.
// Paths below the root then lead to what is not the manager's. It returns nil if nothing is locked. A check that hangs is
// abandoned when ctx ends; until it returns, every check fails.
func (l *Lock) Check(ctx context.Context) error {
	locked := l.root.Load()
	if locked == nil {
		return nil
	}
	if l.isHung() {
		return fmt.Errorf("an earlier check of the root %q has not returned: %w", l.Path, volume.ErrTransient)
	}
	var err error
	left := abandonable.Await(ctx, 0, func() { err = l.compare(locked) })
	if left == nil {
		return err
	}
	l.mu.Lock()
	l.hung = left
	l.mu.Unlock()
	return outcome.NewAbandonedRead(fmt.Sprintf("stat of the root %q", l.Path), context.Cause(ctx), left)
}

// isHung reports whether a check was abandoned and has not returned.
func (l *Lock) isHung() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.hung:
		return false
	default:
		return l.hung != nil
	}
}

// compare returns an error unless the locked directory is at the root's path.
func (l *Lock) compare(locked *root) error {
	now, err := os.Stat(l.Path)
	switch {
	case err == nil && os.SameFile(locked.number, now):
		return nil
	case err == nil:
		err = errors.New("another directory is there")
	}
	return fmt.Errorf("the directory that this manager has locked is not at %q any more, so nothing there is changed: bring it back, or empty the node and start again: %w: %w",
		l.Path, ErrReplaced, err)
}

// Release unlocks the root if this Lock holds it.
func (l *Lock) Release() error {
	release, _ := l.locks.Take(nil, struct{}{})
	defer release()
	if locked := l.root.Swap(nil); locked != nil {
		return locked.dir.Close()
	}
	return nil
}
