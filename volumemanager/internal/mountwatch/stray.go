package mountwatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volumemanager/internal/health"
)

// This file handles foreign files in the directories on which volumes are mounted. They are never deleted. While a volume
// hides them, its conditions show them. After its teardown they keep the directory in place, and the directory is reported.

// strayFiles has the directories on which volumes are being staged, or were staged, and which had files before. It is safe for
// concurrent use. Make it with newStrayFiles.
type strayFiles struct {
	mu     sync.Mutex
	byPath map[string]error
}

func newStrayFiles() strayFiles { return strayFiles{byPath: make(map[string]error)} }

func (s *strayFiles) get(path string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byPath[path]
}

// set records the files at a path; nil means that there are none.
func (s *strayFiles) set(path string, found error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.byPath, path); found != nil {
		s.byPath[path] = found
	}
}

// findStrayFiles notes the files in the directory on which a volume is about to be staged. They are reported when the mount
// hides them. If something is mounted there already, it does nothing: reading that mount could hang, and would not show what
// is below it.
func (g guard) findStrayFiles(ctx context.Context, path string, intent operationexecutor.Intent) {
	if intent.Kind != operationexecutor.OpMount || !isStaging(intent) {
		return
	}
	if _, err := g.kernel.Lookup(ctx, path); !errors.Is(err, mount.ErrNotMounted) {
		return
	}
	var below error
	if !isEmptyOrMissing(path) {
		below = fmt.Errorf("files lie in %q, below the volume that is staged there: they stay, and so will the directory: move them away when it is unstaged", path)
	}
	g.strays.set(path, below)
}

// reportStrayFiles reports the files that a staging hides.
func (g guard) reportStrayFiles(path string, intent operationexecutor.Intent) {
	if intent.Kind != operationexecutor.OpMount || !isStaging(intent) {
		return
	}
	below := g.strays.get(path)
	if below == nil || g.mounts.get(path) == nil {
		return // A volume that is staged without a mount has its own files there.
	}
	g.options.Health.Report(holderOf(intent), health.Below, []health.Condition{health.Degraded(health.StrayFiles, below)})
}

func isEmptyOrMissing(path string) bool {
	dir, err := os.Open(path)
	if err != nil {
		return true // or it cannot be said
	}
	defer dir.Close()
	_, err = dir.Readdirnames(1)
	return errors.Is(err, io.EOF)
}

// reportKept lists the directory of a volume that was torn down as an orphan, or removes it from the orphans if it is gone.
func (g guard) reportKept(path string, intent operationexecutor.Intent) {
	if !isTeardown(intent) {
		return
	}
	g.strays.set(path, nil)
	g.options.Orphans.Kept(path, intent.PodUID, g.mounts.isRemoved(path))
}

// isStaging reports whether an intent to mount is about the staging: an operation that stages and sets up records each on its own.
func isStaging(intent operationexecutor.Intent) bool {
	return intent.PodUID == "" || intent.MountPath == ""
}
