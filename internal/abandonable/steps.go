package abandonable

import (
	"cmp"
	"context"
	"sync"
)

// stepsKey is the context key of the steps of an operation.
type stepsKey struct{}

// steps holds the present step of an operation. If the caller abandons the operation, its error names that step.
type steps struct {
	mu   sync.Mutex
	name string
}

// Begin records that the named step of the operation with the context ctx comes next. It fails if ctx has ended, so an
// abandoned operation begins nothing more.
func Begin(ctx context.Context, name string) error {
	Note(ctx, name)
	return ctx.Err()
}

// Note is [Begin] for a step that must always be taken, such as a clean-up.
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
