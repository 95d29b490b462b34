package mount

import "context"

// removedKey is the key of what is told of removed targets in a context.
type removedKey struct{}

// WithRemoved returns a context for calls of code that unmounts: removed is told of each target that [Mounter.RemoveTarget] has
// removed with it. The kernel removes no mount point, so nothing was mounted there any more. Removed is called before the call
// returns, and later where that was abandoned; it must not block, and be safe for use by several goroutines.
func WithRemoved(ctx context.Context, removed func(target string)) context.Context {
	return context.WithValue(ctx, removedKey{}, removed)
}

// tellRemoved reports a target that was removed to who has made ctx by [WithRemoved], if anybody has.
func tellRemoved(ctx context.Context, target string) {
	if removed, ok := ctx.Value(removedKey{}).(func(target string)); ok {
		removed(target)
	}
}
