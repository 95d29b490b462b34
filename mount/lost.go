package mount

import (
	"cmp"
	"fmt"

	"github.com/volumekit/volumekit/internal/lostcall"
)

// LostError is the error of an operation whose context ended while a system call was under way. The operation was left
// behind and may still have its effect: the error matches [ErrUncertain]. It also matches the context's error.
type LostError struct {
	// Call is the system call, or the step, that did not return, such as "umount2".
	Call string
	// Path is the path that the operation is about.
	Path string

	cause error
	done  <-chan struct{}
}

// NewLostError returns the error of an operation that was left behind because of cause, the context's error, and that
// ends when done is closed. It is for other implementations of [Interface].
func NewLostError(call, path string, cause error, done <-chan struct{}) *LostError {
	return &LostError{Call: call, Path: path, cause: cause, done: done}
}

// Error names the call and the path.
func (e *LostError) Error() string {
	return fmt.Sprintf("%s of %q has not returned and was left behind: %v", e.Call, e.Path, e.cause)
}

// Uncertain returns true.
func (e *LostError) Uncertain() bool { return true }

// Done returns a channel that is closed when the operation has really ended. It never is if the kernel never returns.
func (e *LostError) Done() <-chan struct{} { return e.done }

// Is reports whether target is ErrUncertain.
func (e *LostError) Is(target error) bool { return target == ErrUncertain }

// Unwrap returns the context's error.
func (e *LostError) Unwrap() error { return e.cause }

// LostCall is an operation that was left behind and has not ended.
type LostCall struct {
	// Call is the system call, or the step, that it was last seen in.
	Call string
	// Path is the path that the operation is about.
	Path string
}

// newCalls returns what runs the operations of a Mounter: one that changes and one that looks at a time for each path.
func newCalls(options Options) *lostcall.Calls {
	return lostcall.New(lostcall.Options{
		Max: cmp.Or(max(options.MaxLost, 0), DefaultMaxLost), Logger: options.Logger, Stuck: ErrStuck,
		Lost: func(call, path string, cause error, done <-chan struct{}) error {
			return NewLostError(call, path, cause, done)
		},
	})
}

func lostCalls(c *lostcall.Calls) (all []LostCall) {
	for _, call := range c.Lost() {
		all = append(all, LostCall{Call: call.Name, Path: call.Path})
	}
	return all
}
