package mount

import (
	"context"
	"fmt"

	"github.com/volumekit/volumekit/internal/abandonable"
)

// RunAbandonable runs work, which makes system calls that nothing can interrupt, such as a stat on a dead server. It
// returns when ctx ends, even if work still runs. The error is then an [*AbandonedError] with call and path. If ctx has
// already ended, work does not begin, and the error matches [ErrTransient]. Use it for the few calls that neither a
// [Mounter] nor mount/safepath makes: each abandoned call keeps a thread, and RunAbandonable does not limit their number.
//
// The goroutine ends with work. Work must not panic. It must return its findings only as its result, because its caller may
// have left.
func RunAbandonable[T any](ctx context.Context, call, path string, work func() (T, error)) (T, error) {
	var none T
	if ctx.Err() != nil {
		return none, fmt.Errorf("%s of %q was not begun: %w: %w", call, path, ErrTransient, context.Cause(ctx))
	}
	var result T
	var err error
	if left := abandonable.Await(ctx, 0, func() { result, err = work() }); left != nil {
		return none, NewAbandonedError(call, path, context.Cause(ctx), left)
	}
	return result, err
}
