package volumemanager

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/keylock"
	"github.com/volumekit/volumekit/volumemanager/internal/mountwatch"
)

// rootMode is that of a root which the manager makes: as plugins make the directories below it.
const rootMode = 0o750

// rootLock locks the directory under which all volumes of the node live, so that no second manager with records elsewhere,
// or without records, works on the same volumes.
type rootLock struct {
	path string // empty: nothing is locked
	// makes says that a directory that is not there is made. Without that it is locked when it is there.
	makes bool

	held  atomic.Bool
	turns keylock.Locks[struct{}]
	lock  io.Closer // Who has the turn may change it.
}

// rootOf returns the directory under which all volumes live; empty when it is one of those that hold the records, which are
// locked in any case.
func rootOf(host volume.VolumeHost, o Options) string {
	root := filepath.Dir(filepath.Clean(host.GetPodsDir()))
	if root == filepath.Clean(o.RuntimeDir) || root == filepath.Clean(o.StateDir) {
		return ""
	}
	return root
}

// newRootLock returns a lock of the root of host. Where the volumes of the manager are no fake's, the root is made: another
// manager may begin at any time.
func newRootLock(host volume.VolumeHost, o Options) *rootLock {
	return &rootLock{path: rootOf(host, o), makes: mountwatch.IsKernel(o.Mounter) || o.Mounter == nil}
}

// take locks the directory unless it is locked by this lock. One that another has locked is an error that matches
// [volume.ErrInUse].
func (l *rootLock) take() error {
	if l.path == "" || l.held.Load() {
		return nil
	}
	release, _ := l.turns.Take(nil, struct{}{})
	defer release()
	if l.lock != nil {
		return nil
	}
	if l.makes {
		if err := os.MkdirAll(l.path, rootMode); err != nil {
			return fmt.Errorf("the root of all volumes cannot be made, and so not be locked: %w", err)
		}
	}
	lock, err := record.Lock(l.path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !l.makes:
		return nil
	case errors.Is(err, record.ErrUnsupported):
		return nil // Nor can this platform mount anything there.
	case errors.Is(err, record.ErrLocked):
		return fmt.Errorf("another volume manager works on the volumes under %q: stop it, or give this one another root: %w: %w", l.path, err, volume.ErrInUse)
	case err != nil:
		return fmt.Errorf("lock on the volumes under %q: %w", l.path, err)
	}
	l.lock = lock
	l.held.Store(true)
	return nil
}

func (l *rootLock) release() error {
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
