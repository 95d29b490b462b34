package outcome

import "fmt"

// AbandonedError is the error of a call that was abandoned because it did not return when its context ended. The call may still
// have its effect. The error matches the cause of the context's end, and ErrUncertain unless the call changes nothing.
type AbandonedError struct {
	// Call is the call, or the step, that did not return, such as "umount2".
	Call string
	// Path is the path on which the call works; empty for none.
	Path string

	looks bool
	cause error
	done  <-chan struct{}
}

// NewAbandonedError returns the error of a call that may have an effect. cause ended the context of the call. done closes when the
// call returns.
func NewAbandonedError(call, path string, cause error, done <-chan struct{}) *AbandonedError {
	return &AbandonedError{Call: call, Path: path, cause: cause, done: done}
}

// NewAbandonedRead is [NewAbandonedError] for a call that changes nothing.
func NewAbandonedRead(call string, cause error, done <-chan struct{}) *AbandonedError {
	return &AbandonedError{Call: call, looks: true, cause: cause, done: done}
}

// Error names the call and the path.
func (e *AbandonedError) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("%s has not returned and was abandoned: %v", e.Call, e.cause)
	}
	return fmt.Sprintf("%s of %q has not returned and was abandoned: %v", e.Call, e.Path, e.cause)
}

// Uncertain reports whether the call may have its effect.
func (e *AbandonedError) Uncertain() bool { return !e.looks }

// Done returns a channel that closes when the call has returned. It never closes if the kernel never returns.
func (e *AbandonedError) Done() <-chan struct{} { return e.done }

// Is reports whether target is ErrUncertain and the call may still have its effect.
func (e *AbandonedError) Is(target error) bool { return !e.looks && target == ErrUncertain }

// Unwrap returns the cause of the end of the call's context.
func (e *AbandonedError) Unwrap() error { return e.cause }
