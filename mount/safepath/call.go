package safepath

import (
	"context"
	"sync"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/mount"
)

// newCalls makes what runs the calls of one root, or of all sub-paths. Calls with the same key take turns.
func newCalls() *abandonable.Calls {
	return abandonable.New(abandonable.Options{
		Stuck: mount.ErrStuck,
	})
}

// run calls op, bounded by ctx. Discard is given the result of a call that was abandoned.
func run[T any](ctx context.Context, calls *abandonable.Calls, key string, discard func(T),
	op func(context.Context) (T, error),
) (T, error) {
	h := &handover[T]{discard: discard}
	err := calls.Do(ctx, abandonable.Key{Path: key}, func(ctx context.Context) error {
		result, err := op(ctx)
		h.put(result)
		return err
	})
	if err != nil {
		h.abandon()
		return *new(T), err
	}
	return h.result, nil
}

// handover is where a call leaves its result for a caller who may have gone.
type handover[T any] struct {
	discard func(T)

	mu          sync.Mutex
	result      T
	isThere     bool
	isAbandoned bool
}

// put is called once, by the call.
func (h *handover[T]) put(result T) {
	h.mu.Lock()
	isAbandoned := h.isAbandoned
	h.result, h.isThere = result, true
	h.mu.Unlock()
	if isAbandoned {
		h.discard(result)
	}
}

// abandon is called once at most, by the caller, who does not want the result.
func (h *handover[T]) abandon() {
	h.mu.Lock()
	isThere := h.isThere
	h.isAbandoned = true
	h.mu.Unlock()
	if isThere {
		h.discard(h.result)
	}
}
