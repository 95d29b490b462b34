package mount

import "context"

// madeKey is the key of what is told of mounts in a context.
type madeKey struct{}

// WithMade returns a context for calls of code that mounts: made is told of each mount that [Mounter.Mount] makes with it, by
// what is known of that very mount, and not of what is uppermost at target afterwards; and of each mount that the code reports
// with [TellMade]. Made is called before the call returns, and later where that was left behind; it must not block, and be safe
// for use by several goroutines. A mount of which the kernel can say nothing is not told of.
func WithMade(ctx context.Context, made func(target string, m MountPoint)) context.Context {
	return context.WithValue(ctx, madeKey{}, made)
}

// TellMade reports a mount at target to who has made ctx by [WithMade], if anybody has. It is for code that mounts without a
// [Mounter], and for code that finds a mount and has proof that it is its own.
func TellMade(ctx context.Context, target string, m MountPoint) {
	if made, ok := ctx.Value(madeKey{}).(func(target string, m MountPoint)); ok {
		made(target, m)
	}
}

// isTold reports whether anybody wants to know of mounts.
func isTold(ctx context.Context) bool { return ctx.Value(madeKey{}) != nil }
