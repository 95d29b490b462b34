package abandonable

import (
	"context"
	"time"
)

// Await runs f in a goroutine of its own and waits for it. It returns nil if f has returned. If f has not returned a grace
// after the end of ctx, Await abandons it and returns a channel that closes when f returns. Until then, do not read what f
// writes. The goroutine ends with f, also by runtime.Goexit. A panic in it ends the process.
func Await(ctx context.Context, grace time.Duration, f func()) (left <-chan struct{}) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	if grace <= 0 {
		return done
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-done:
		return nil
	case <-timer.C:
		return done
	}
}
