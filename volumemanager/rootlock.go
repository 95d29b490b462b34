package volumemanager

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync/atomic"

	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/volume"
)

// rootLock locks the directory under which all volumes of the node live, so that no second manager with records elsewhere
// works on the same volumes. A directory that is not there has nothing in it: it is locked when it is there.
type rootLock struct {
	path string // empty: nothing is locked

	held  atomic.Bool
	turns turns[struct{}]
	lock  io.Closer // Who has the turn may change it.
}

// take locks the directory unless it is locked by this lock. One that another has locked is an error that matches
// [volume.ErrInUse].
func (l *rootLock) take() error {
	if l.path == "" || l.held.Load() {
		return nil
	}
	release, _ := l.turns.take(nil, struct{}{})
	defer release()
	if l.lock != nil {
		return nil
	}
	lock, err := record.Lock(l.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, record.ErrLocked):
		return fmt.Errorf("another volume manager works on the volumes under %q: %w: %w", l.path, err, volume.ErrInUse)
	case err != nil:
		return fmt.Errorf("lock on the volumes under %q: %w", l.path, err)
	}
	l.lock = lock
	l.held.Store(true)
	return nil
}

func (l *rootLock) release() error {
	release, _ := l.turns.take(nil, struct{}{})
	defer release()
	if l.lock == nil {
		return nil
	}
	l.held.Store(false)
	err := l.lock.Close()
	l.lock = nil
	return err
}
