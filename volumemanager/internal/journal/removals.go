package journal

import (
	"fmt"
	"sync"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// pathLocks excludes the removal of an orphan and an operation that is about to use its path. The zero value is ready.
type pathLocks struct {
	mu sync.Mutex
	// removing holds the paths of orphans that are being removed, intending the paths whose intent is being recorded.
	removing, intending map[string]struct{}
}

// intend locks the path of an intent until end is called. The lock is needed only until the intent is recorded: after
// that the record protects the path. It is an error if an orphan at the path is being removed.
func (c *pathLocks) intend(intent operationexecutor.Intent) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.intending == nil {
		c.intending = make(map[string]struct{})
	}
	path := pathOfIntent(intent)
	if _, ok := c.removing[path]; ok {
		return fmt.Errorf("what was left at %q is being removed: %w", path, volume.ErrInUse)
	}
	c.intending[path] = struct{}{}
	return nil
}

func (c *pathLocks) end(intent operationexecutor.Intent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.intending, pathOfIntent(intent))
}

// Claim locks a path for the removal of an orphan, if no intent is being recorded for it, and isFree returns true: the
// path has no record. Claim returns false if the path is not free. Otherwise the caller must call release.
func (j *Journal) Claim(path string, isFree func() bool) (release func(), ok bool) {
	c := &j.removals
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, busy := c.intending[path]; busy || !isFree() {
		return nil, false
	}
	if c.removing == nil {
		c.removing = make(map[string]struct{})
	}
	c.removing[path] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.removing, path)
	}, true
}

// IsRemoving reports whether the content of a path is being removed. Part of it may still be there.
func (j *Journal) IsRemoving(path string) bool {
	j.removals.mu.Lock()
	defer j.removals.mu.Unlock()
	_, is := j.removals.removing[path]
	return is
}

// pathOfIntent returns the mount path of an intent; empty for an attachment.
func pathOfIntent(intent operationexecutor.Intent) string {
	switch partOf(intent) {
	case partSetUp:
		return intent.MountPath
	case partStaging:
		return intent.DeviceMountPath
	default:
		return ""
	}
}
