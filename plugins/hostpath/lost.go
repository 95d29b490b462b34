package hostpath

import (
	"context"
	"fmt"

	"github.com/volumekit/volumekit/volume"
)

// lostError says that a look at a path was left behind: the filesystem under it does not answer.
type lostError struct {
	path  string
	cause error
	done  <-chan struct{}
}

func (e *lostError) Error() string {
	return fmt.Sprintf("%s does not answer: see whether its filesystem hangs: %v", e.path, e.cause)
}

// Uncertain says that something may still be made.
func (e *lostError) Uncertain() bool { return true }

// Done is closed when the look has really ended.
func (e *lostError) Done() <-chan struct{} { return e.done }

// Unwrap returns why nobody waits any more.
func (e *lostError) Unwrap() []error { return []error{volume.ErrUncertain, e.cause} }

// leaveBehind runs check, which makes system calls that nothing can interrupt, and returns when ctx ends even if check
// has not. The goroutine ends with check.
func leaveBehind(ctx context.Context, path string, check func() error) error {
	if err := ctx.Err(); err != nil {
		return volume.Transient(fmt.Errorf("not started: %w", context.Cause(ctx)))
	}
	done := make(chan struct{})
	var err error
	go func() {
		defer close(done)
		err = check()
	}()
	select {
	case <-done:
		return err
	case <-ctx.Done():
		return &lostError{path: path, cause: context.Cause(ctx), done: done}
	}
}
