package outcome

import "fmt"

// LostError is the error of a call that did not return when its context ended, and that was left behind. It may still have
// its effect. It matches what ended the context, and ErrUncertain unless the call changes nothing.
type LostError struct {
	// Call is the call, or the step, that did not return, such as "umount2".
	Call string
	// Path is the path that it is about; empty when it is about none.
	Path string

	looks bool
	cause error
	done  <-chan struct{}
}

// NewLostError returns the error of a call that cause ended, and that closes done when it returns.
func NewLostError(call, path string, cause error, done <-chan struct{}) *LostError {
	return &LostError{Call: call, Path: path, cause: cause, done: done}
}

// NewLostLook is [NewLostError] for a call that changes nothing.
func NewLostLook(call string, cause error, done <-chan struct{}) *LostError {
	return &LostError{Call: call, looks: true, cause: cause, done: done}
}

// Error names the call and the path.
func (e *LostError) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("%s has not returned and was left behind: %v", e.Call, e.cause)
	}
	return fmt.Sprintf("%s of %q has not returned and was left behind: %v", e.Call, e.Path, e.cause)
}

// Uncertain reports whether the call may have its effect.
func (e *LostError) Uncertain() bool { return !e.looks }

// Done returns a channel that is closed when the call has really ended. It never is if the kernel never returns.
func (e *LostError) Done() <-chan struct{} { return e.done }

// Is reports whether target is ErrUncertain and the call may have its effect.
func (e *LostError) Is(target error) bool { return !e.looks && target == ErrUncertain }

// Unwrap returns what ended the call's context.
func (e *LostError) Unwrap() error { return e.cause }
