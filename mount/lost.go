package mount

import (
	"cmp"

	"github.com/volumekit/volumekit/internal/lostcall"
	"github.com/volumekit/volumekit/internal/outcome"
)

// LostError is the error of an operation whose context ended while a system call was under way. The operation was left
// behind and may still have its effect: the error matches [ErrUncertain]. It also matches the context's error. Its Done is
// closed when the operation has really ended, which never happens if the kernel never returns.
type LostError = outcome.LostError

// NewLostError returns the error of an operation that was left behind because of cause, the context's error, and that
// ends when done is closed. It is for other implementations of [Interface].
func NewLostError(call, path string, cause error, done <-chan struct{}) *LostError {
	return outcome.NewLostError(call, path, cause, done)
}

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
	})
}

func lostCalls(c *lostcall.Calls) (all []LostCall) {
	for _, call := range c.Lost() {
		all = append(all, LostCall{Call: call.Name, Path: call.Path})
	}
	return all
}
