package mount

import (
	"cmp"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/internal/outcome"
)

// AbandonedError is the error of an operation whose context ended during a system call. The operation was abandoned and may
// still have its effect, so the error matches [ErrUncertain]. It also matches the context's error. Its Done closes when the
// operation has really ended, which never happens if the kernel never returns.
type AbandonedError = outcome.AbandonedError

// NewAbandonedError returns the error of an operation that was abandoned because of cause, the context's error, and that
// ends when done is closed. It is for other implementations of [Interface].
func NewAbandonedError(call, path string, cause error, done <-chan struct{}) *AbandonedError {
	return outcome.NewAbandonedError(call, path, cause, done)
}

// AbandonedCall is an operation that was abandoned and has not ended.
type AbandonedCall struct {
	// Call is the system call, or the step, that it was last seen in.
	Call string
	// Path is the path that the operation is about.
	Path string
}

// newCalls returns what runs the operations of a Mounter: one that changes and one that looks at a time for each path.
func newCalls(options Options) *abandonable.Calls {
	return abandonable.New(abandonable.Options{
		Max: cmp.Or(max(options.MaxAbandoned, 0), DefaultMaxAbandoned), Logger: options.Logger, Stuck: ErrStuck,
	})
}

func abandonedCalls(c *abandonable.Calls) (all []AbandonedCall) {
	for _, call := range c.Abandoned() {
		all = append(all, AbandonedCall{Call: call.Name, Path: call.Path})
	}
	return all
}
