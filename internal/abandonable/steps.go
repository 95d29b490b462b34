package abandonable

import (
	"cmp"
	"context"
	"sync"
)

// stepsKey finds the steps of an operation in its context.
type stepsKey struct{}

// steps is where an operation says what it is doing, for the caller that may leave it behind.
type steps struct {
	mu   sync.Mutex
	name string
}

// Begin says that the named step comes next in the operation whose context ctx is. It fails when the caller has gone, so
// that nothing more is begun.
func Begin(ctx context.Context, name string) error {
	Note(ctx, name)
	return ctx.Err()
}

// Note is [Begin] for a step that must be taken in any case, such as a clean-up.
func Note(ctx context.Context, name string) {
	if s, ok := ctx.Value(stepsKey{}).(*steps); ok {
		s.mu.Lock()
		s.name = name
		s.mu.Unlock()
	}
}

func (s *steps) current() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.name, "start")
}
