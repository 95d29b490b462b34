package mount

import (
	"context"
	"fmt"
)

// LeaveBehind runs work, which makes system calls that nothing can interrupt, such as a stat on a dead server, and returns
// when ctx ends even if work has not: the error is then a [*LostError] of call and path. When ctx has ended already, work
// is not begun, and the error matches [ErrTransient]. It is for the few calls of a program that neither a [Mounter] nor
// mount/safepath makes for it: each call that is left behind keeps a thread, and here nobody counts them.
//
// The goroutine ends with work, which must not panic, and must write to nothing that its caller reads after an error.
func LeaveBehind(ctx context.Context, call, path string, work func() error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s of %q was not begun: %w: %w", call, path, ErrTransient, context.Cause(ctx))
	}
	done := make(chan struct{})
	var err error
	go func() {
		defer close(done)
		err = work()
	}()
	select {
	case <-done:
		return err
	case <-ctx.Done():
		return NewLostError(call, path, context.Cause(ctx), done)
	}
}
