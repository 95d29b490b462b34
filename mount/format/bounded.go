package format

import (
	"context"
	"os"
	"time"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/mount"
)

// toolGrace is how long a tool that was killed, because the context ended, is waited for.
const toolGrace = time.Second

// bounded runs op, which may wait for a dead device for ever, and returns soon after ctx has ended.
func bounded[T any](ctx context.Context, path string, op func(context.Context) (T, error)) (T, error) {
	calls := abandonable.New(abandonable.Options{
		Grace: toolGrace, Stuck: mount.ErrStuck,
	})
	return abandonable.Value(ctx, calls, abandonable.Key{Path: path}, op)
}

// onFile is bounded for an open file.
func onFile[T any](
	ctx context.Context, file *os.File, op func(context.Context, *os.File) (T, error),
) (T, error) {
	return bounded(ctx, file.Name(), func(ctx context.Context) (T, error) { return op(ctx, file) })
}

// onPath is bounded for a file that is opened first and closed at the end.
func onPath[T any](
	ctx context.Context, path string, flags int, op func(context.Context, *os.File) (T, error),
) (T, error) {
	return bounded(ctx, path, func(ctx context.Context) (T, error) {
		if err := abandonable.Begin(ctx, "open"); err != nil {
			return *new(T), err
		}
		file, err := openMedium(path, flags)
		if err != nil {
			return *new(T), err
		}
		defer file.Close()
		return op(ctx, file)
	})
}

// nothing is the result of what has none.
type nothing struct{}
