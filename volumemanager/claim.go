package volumemanager

import (
	"fmt"
	"sync"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// pathClaims keeps what removes an orphan and an operation that is about to use its path apart. The zero value is ready.
type pathClaims struct {
	mu sync.Mutex
	// removing holds the paths of orphans that are being removed, intending those whose intent is being recorded.
	removing, intending map[string]struct{}
}

// intend claims the paths of an intent until end, for the time that it takes to record it: after that, the record does. An
// orphan that is being removed there is an error.
func (c *pathClaims) intend(intent operationexecutor.Intent) error {
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

func (c *pathClaims) end(intent operationexecutor.Intent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.intending, pathOfIntent(intent))
}

// remove claims a path of which isFree says, while nobody claims it, that it is on no record. It returns false when it is
// not free; release must be called otherwise.
func (c *pathClaims) remove(path string, isFree func() bool) (release func(), ok bool) {
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

// isRemoving reports whether what lies at a path is being removed, so that a part of it may be left.
func (c *pathClaims) isRemoving(path string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, is := c.removing[path]
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
