// Package rootlock locks the directory under which all volumes of a node live, so that no second manager, with records elsewhere
// or without records, works on the same volumes.
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

// rootMode is that of a root which the lock makes: as plugins make the directories below it.
const rootMode = 0o750

// Lock is the lock of one root. It is held from the first Take to Release. The zero value locks nothing.
type Lock struct {
	// Path is that of the root; empty: nothing is locked.
	Path string
	// Make says that a directory that is not there is made, since another manager may begin at any time. Without that it is locked
	// when it is there.
	Make bool

	held  atomic.Bool
	turns keylock.Locks[struct{}]
	lock  io.Closer // Who has the turn may change it.
}

// Take locks the directory unless it is locked by this lock. One that another has locked is an error that matches
// [volume.ErrInUse].
func (l *Lock) Take() error {
	if l.Path == "" || l.held.Load() {
		return nil
	}
	release, _ := l.turns.Take(nil, struct{}{})
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
		return nil // Nor can this platform mount anything there.
	case errors.Is(err, record.ErrLocked):
		return fmt.Errorf("another volume manager works on the volumes under %q: stop it, or give this one another root: %w: %w", l.Path, err, volume.ErrInUse)
	case err != nil:
		return fmt.Errorf("lock on the volumes under %q: %w", l.Path, err)
	}
	l.lock = lock
	l.held.Store(true)
	return nil
}

// Release unlocks the directory, if it is locked.
func (l *Lock) Release() error {
	release, _ := l.turns.Take(nil, struct{}{})
	defer release()
	if l.lock == nil {
		return nil
	}
	l.held.Store(false)
	err := l.lock.Close()
	l.lock = nil
	return err
}
