package mount

import "context"

// madeKey is the key of the function that receives mounts, in a context.
type madeKey struct{}

// WithMade returns a context for calls of code that mounts. [Mounter.Mount] calls made with each mount that it makes with this
// context. The mount's identity is that of this very mount, even if another one covers it by then. [ReportMade] calls made too.
// The call comes before Mount returns, or later if Mount was abandoned. made must not block and must be safe for use by several
// goroutines. It is not called for a mount that the kernel cannot describe.
func WithMade(ctx context.Context, made func(target string, m MountPoint)) context.Context {
	return context.WithValue(ctx, madeKey{}, made)
}

// ReportMade calls the function that [WithMade] put into ctx, if there is one, with a mount at target. Call it from code that
// mounts without a [Mounter], and from code that finds a mount and has proof that it is its own.
func ReportMade(ctx context.Context, target string, m MountPoint) {
	if made, ok := ctx.Value(madeKey{}).(func(target string, m MountPoint)); ok {
		made(target, m)
	}
}

// reportsMade reports whether ctx has a function of [WithMade].
func reportsMade(ctx context.Context) bool { return ctx.Value(madeKey{}) != nil }
