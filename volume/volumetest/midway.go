package volumetest

import (
	"context"
	"errors"
	"time"

	"github.com/volumekit/volumekit/volume"
)

// midways is how many moments of a call are tried for the end of its context.
const midways = 8

// timeOf returns how long a call takes.
func timeOf(call func()) time.Duration {
	begun := time.Now()
	call()
	return time.Since(begun)
}

// endsAfter returns a context that ends in the nth of the moments of a call that takes whole.
func (e *env) endsAfter(whole time.Duration, n int) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(e.ctx(), whole*time.Duration(n+1)/(midways+1), errors.New("cancelled by the test"))
}

// isUncertain reports whether err says that the effect may be there.
func isUncertain(err error) bool {
	if errors.Is(err, volume.ErrUncertain) {
		return true
	}
	var u interface{ Uncertain() bool }
	return errors.As(err, &u) && u.Uncertain()
}

// awaitLost waits for the call that err says was abandoned: nothing else may be started on its volume before.
func (e *env) awaitLost(err error) {
	e.t.Helper()
	var lost interface{ Done() <-chan struct{} }
	if !errors.As(err, &lost) {
		return
	}
	select {
	case <-lost.Done():
	case <-e.ctx().Done():
		e.t.Fatalf("a call that was abandoned has not returned: %v", err)
	}
}
