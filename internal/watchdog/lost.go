package watchdog

import (
	"fmt"

	"github.com/volumekit/volumekit/internal/outcome"
)

// LostError is the error of a call that was abandoned: it had not returned a grace after its context ended. It matches the
// error that ended the context, and volume.ErrUncertain when the call may change the world.
type LostError struct {
	// Call is the method.
	Call string

	changes bool
	cause   error
	done    <-chan struct{}
}

// NewLostError returns the error of a call that cause ended and that closes done when it returns. changes says that it may
// change the world.
func NewLostError(call string, changes bool, cause error, done <-chan struct{}) *LostError {
	return &LostError{Call: call, changes: changes, cause: cause, done: done}
}

// Error names the call.
func (e *LostError) Error() string {
	return fmt.Sprintf("%s has not returned and was left behind: %v", e.Call, e.cause)
}

// Uncertain reports whether the call may change the world.
func (e *LostError) Uncertain() bool { return e.changes }

// Done returns a channel that is closed when the call has returned.
func (e *LostError) Done() <-chan struct{} { return e.done }

// Is reports whether target is volume.ErrUncertain and the call may change the world.
func (e *LostError) Is(target error) bool { return e.changes && target == outcome.ErrUncertain }

// Unwrap returns what ended the call's context.
func (e *LostError) Unwrap() error { return e.cause }
