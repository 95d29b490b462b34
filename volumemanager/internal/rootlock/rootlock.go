// Package rootlock locks the directory above all volumes of a node. A second manager, with other records or without any,
// then cannot work on the same volumes.
package rootlock

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync/atomic"

	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/keylock"
)

// rootMode is the mode of a root that Take makes. Plugins make the directories below it with the same mode.
const rootMode = 0o750

// Lock locks one root, from the first Take to Release. The zero value locks nothing.
type Lock struct {
	// Path is the root's path. If it is empty nothing is locked.
	Path string
	// Make says that Take makes a missing root, because another manager may start at any time. Otherwise a missing root is
	// not locked.
	Make bool

	held  atomic.Bool
	locks keylock.Locks[struct{}]
	lock  io.Closer // guarded by locks
}

// Take locks the root, unless this Lock holds it already. If another manager has locked it, the error matches
// [volume.ErrInUse].
func (l *Lock) Take() error {
	if l.Path == "" || l.held.Load() {
		return nil
	}
	release, _ := l.locks.Take(nil, struct{}{})
	defer release()
	if l.lock != nil {
		return nil
	}
	if l.Make {
		if err := os.MkdirAll(l.Path, rootMode); err != nil {
			return fmt.Errorf("the root of all volumes cannot be made, and so not be locked: %w", err)
		}
	}
	lock, err := record.Lock(l.Path)
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
	l.lock = lock
	l.held.Store(true)
	return nil
}

// Release unlocks the root if this Lock holds it.
func (l *Lock) Release() error {
	release, _ := l.locks.Take(nil, struct{}{})
	defer release()
	if l.lock == nil {
		return nil
	}
	l.held.Store(false)
	err := l.lock.Close()
	l.lock = nil
	return err
}
