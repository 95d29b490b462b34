package abandonable

import "context"

// guardedKey finds the context of a call that is guarded.
type guardedKey struct{}

// Guarded returns ctx, that of a call that its caller leaves behind by itself when it does not return, for that call. An
// operation that such a call runs needs no goroutine of its own. One whose context ends earlier has one all the same.
func Guarded(ctx context.Context) context.Context {
	return context.WithValue(ctx, guardedKey{}, ctx)
}

// isGuarded reports whether ctx is that of a guarded call, and ends when that does.
func isGuarded(ctx context.Context) bool {
	guarded, ok := ctx.Value(guardedKey{}).(context.Context)
	return ok && guarded.Done() == ctx.Done()
}
