package abandonable

import "context"

// guardedKey is the context key of a guarded call.
type guardedKey struct{}

// Guarded marks ctx as the context of a call that another watch abandons if it does not return. An operation that this call
// runs needs no goroutine of its own, unless its context ends earlier than ctx.
func Guarded(ctx context.Context) context.Context {
	return context.WithValue(ctx, guardedKey{}, ctx)
}

// isGuarded reports whether ctx is the context of a guarded call, or ends together with it.
func isGuarded(ctx context.Context) bool {
	guarded, ok := ctx.Value(guardedKey{}).(context.Context)
	return ok && guarded.Done() == ctx.Done()
}
