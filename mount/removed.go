package mount

import "context"

// removedKey is the context key of the function for removed targets.
type removedKey struct{}

// WithRemoved returns a context for calls of code that unmounts. removed is called with each target that
// [Mounter.RemoveTarget] has removed under this context. The kernel removes no mount point, so nothing was mounted there
// any more. removed is called before the call returns, or later if the call was abandoned. It must not block, and must be
// safe for use by several goroutines.
func WithRemoved(ctx context.Context, removed func(target string)) context.Context {
	return context.WithValue(ctx, removedKey{}, removed)
}

// reportRemoved calls the function that [WithRemoved] put into ctx, if there is one, with a target that was removed.
func reportRemoved(ctx context.Context, target string) {
	if removed, ok := ctx.Value(removedKey{}).(func(target string)); ok {
		removed(target)
	}
}
