package loopblock

import (
	"context"
	"fmt"
	"sync"

	"github.com/volumekit/volumekit/volume"
)

// turns gives the calls of this process that read, write or apply the attributes of one volume their turns. Without them, a
// call could give a device attributes that it read before another call wrote new ones. A call that was abandoned gives up its
// turn: its outcome is uncertain, and it is made again. The zero value is ready to use, from several goroutines at once.
type turns struct {
	mu sync.Mutex
	of map[string]*turn
}

// turn is that of one volume, while calls have it or wait for it.
type turn struct {
	taken chan struct{} // has one element while a call has the turn
	calls int           // how many have it or wait for it
}

// take waits until no other call has the turn of a volume, at most until ctx ends. Nothing was begun then. The caller must call
// done, once, when it has ended.
func (t *turns) take(ctx context.Context, handle string) (done func(), err error) {
	turn := t.join(handle)
	select {
	case turn.taken <- struct{}{}:
		return func() { <-turn.taken; t.leave(handle) }, nil
	case <-ctx.Done():
		t.leave(handle)
		return nil, volume.Transient(fmt.Errorf("another call for volume %q has not ended: %w", handle, context.Cause(ctx)))
	}
}

func (t *turns) join(handle string) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of = map[string]*turn{}
	}
	if t.of[handle] == nil {
		t.of[handle] = &turn{taken: make(chan struct{}, 1)}
	}
	t.of[handle].calls++
	return t.of[handle]
}

func (t *turns) leave(handle string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of[handle].calls--
	if t.of[handle].calls == 0 {
		delete(t.of, handle)
	}
}
