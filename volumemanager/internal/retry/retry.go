// Package retry says when to try again what has failed.
package retry

import (
	"context"
	"math/rand/v2"
	"time"
)

// First is the longest wait after one failure; Last is the longest after many.
const (
	First = time.Second
	Last  = time.Minute
)

// After returns how long to wait after that many failures in a row: twice as long each time, up to a tenth less at
// random.
func After(failures int) time.Duration {
	d := Last
	if shift := max(failures, 1) - 1; shift < 6 {
		d = First << shift
	}
	return d - time.Duration(rand.Int64N(int64(d/10)))
}

// At returns when to try again after that many failures in a row.
func At(failures int) time.Time { return time.Now().Add(After(failures)) }

// Pause waits, or returns early when ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
