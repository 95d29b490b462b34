package journal

import (
	"fmt"
	"sync"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// pathLocks keeps apart what removes an orphan, and an operation that is about to use its path. The zero value is ready.
type pathLocks struct {
	mu sync.Mutex
	// removing holds the paths of orphans that are being removed, intending those whose intent is being recorded.
	removing, intending map[string]struct{}
}

// intend locks the path of an intent until end, for the time that it takes to record it: after that the record protects it. An
// orphan that is being removed there is an error.
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

// Claim locks a path for the removal of an orphan when isFree says, while no intent is being recorded there, that it is on no record.
// It returns false when the path is not free; release must be called otherwise.
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

// IsRemoving reports whether the content of a path is being removed. A part of it may then be left.
func (j *Journal) IsRemoving(path string) bool {
	j.removals.mu.Lock()
	defer j.removals.mu.Unlock()
	_, is := j.removals.removing[path]
	return is
}

// pathOfIntent returns the path at which an intent will have something mounted; empty for an attachment.
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
