// Package retry computes when to retry what has failed.
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

// After returns how long to wait after a number of failures in a row. The wait doubles with each failure; a random part, up
// to a tenth, is taken off.
func After(failures int) time.Duration {
	d := Last
	if shift := max(failures, 1) - 1; shift < 6 {
		d = First << shift
	}
	return d - time.Duration(rand.Int64N(int64(d/10)))
}

// At returns when to retry after a number of failures in a row.
func At(failures int) time.Time { return time.Now().Add(After(failures)) }

// Pause waits for d, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
