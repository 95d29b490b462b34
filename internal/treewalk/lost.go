package treewalk

import (
	"context"
	"fmt"

	"github.com/volumekit/volumekit/internal/outcome"
)

// LostError is the error of a call that was left behind because its context ended first. What it does may still go on: the
// error matches outcome.ErrUncertain, and the context's error.
type LostError struct {
	// Call is what did not return, such as "disk usage".
	Call string
	// Path is the absolute path that the call is about.
	Path string

	cause error
	done  <-chan struct{}
}

// NewLostError returns the error of a call that was left behind because of cause and that ends when done is closed.
func NewLostError(call, path string, cause error, done <-chan struct{}) *LostError {
	return &LostError{Call: call, Path: path, cause: cause, done: done}
}

// Error names the call and the path.
func (e *LostError) Error() string {
	return fmt.Sprintf("%s of %q has not returned and was left behind: %v", e.Call, e.Path, e.cause)
}

// Uncertain returns true.
func (e *LostError) Uncertain() bool { return true }

// Done returns a channel that is closed when the call has really ended. It never is if the kernel never returns.
func (e *LostError) Done() <-chan struct{} { return e.done }

// Is reports whether target is outcome.ErrUncertain.
func (e *LostError) Is(target error) bool { return target == outcome.ErrUncertain }

// Unwrap returns the context's error.
func (e *LostError) Unwrap() error { return e.cause }

// Run calls f in a goroutine of its own and waits for it. When ctx ends first, f has a moment to notice ([Grace]); then it
// is left behind and the error is a [*LostError] about path. f must end soon after ctx, unless the kernel keeps it, and
// must share nothing with the caller that it would still write to then.
func Run(ctx context.Context, call, path string, f func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s of %q was not begun: %w: %w", call, path, outcome.ErrTransient, err)
	}
	return Start(ctx, f).Wait(ctx, call, path)
}
