package loopblock

import (
	"context"
	"fmt"
	"sync"

	"github.com/volumekit/volumekit/volume"
)

// attributeLocks are locks, one for each volume, for calls of this process that read, write or apply attributes. Without them, a
// call could give a device attributes that it read before another call wrote new ones. The zero value is ready to use, from
// several goroutines at once.
type attributeLocks struct {
	mu       sync.Mutex
	byHandle map[string]*attributeLock
}

// attributeLock is that of one volume, while calls have it or wait for it.
type attributeLock struct {
	held  chan struct{} // has one element while a call holds the lock
	users int           // how many have it or wait for it
}

// lock waits until no other call holds the lock of a volume, at most until ctx ends. Nothing was begun then. The caller must call
// done, once, when it has ended.
func (t *attributeLocks) lock(ctx context.Context, handle string) (done func(), err error) {
	turn := t.acquire(handle)
	select {
	case turn.held <- struct{}{}:
		return func() { <-turn.held; t.release(handle) }, nil
	case <-ctx.Done():
		t.release(handle)
		return nil, volume.Transient(fmt.Errorf("another call for volume %q has not ended: %w", handle, context.Cause(ctx)))
	}
}

func (t *attributeLocks) acquire(handle string) *attributeLock {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byHandle == nil {
		t.byHandle = map[string]*attributeLock{}
	}
	if t.byHandle[handle] == nil {
		t.byHandle[handle] = &attributeLock{held: make(chan struct{}, 1)}
	}
	t.byHandle[handle].users++
	return t.byHandle[handle]
}

func (t *attributeLocks) release(handle string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byHandle[handle].users--
	if t.byHandle[handle].users == 0 {
		delete(t.byHandle, handle)
	}
}
