package mount

import "context"

// madeKey is the key of the function that receives mounts, in a context.
type madeKey struct{}

// WithMade returns a context for calls of code that mounts. [Mounter.Mount] calls made with each mount that it makes with this
// context: with the identity of that very mount, not of the uppermost mount at target afterwards. [TellMade] calls it too. The
// call of made comes before Mount returns, or later where Mount was abandoned. Made must not block and must be safe for use by
// several goroutines. It is not called for a mount that the kernel cannot describe.
func WithMade(ctx context.Context, made func(target string, m MountPoint)) context.Context {
	return context.WithValue(ctx, madeKey{}, made)
}

// TellMade reports a mount at target to the function that [WithMade] put into ctx, if there is one. Call it from code that mounts
// without a [Mounter], and from code that finds a mount and has proof that it is its own.
func TellMade(ctx context.Context, target string, m MountPoint) {
	if made, ok := ctx.Value(madeKey{}).(func(target string, m MountPoint)); ok {
		made(target, m)
	}
}

// isTold reports whether the context receives mounts.
func isTold(ctx context.Context) bool { return ctx.Value(madeKey{}) != nil }
