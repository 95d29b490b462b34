// Package backoff says how long to wait before the next attempt, after a number of failures in a row.
//
// A wait grows by a constant factor up to a bound. A random part is subtracted from each wait, so that operations that failed together
// are not retried together. The package keeps no state and starts nothing.
package backoff

import (
	"math/rand/v2"
	"time"
)

// The defaults of [Policy]: those of Kubernetes, where the bound is odd so that it can be recognised in logs.
const (
	DefaultInitial = 500 * time.Millisecond
	DefaultMax     = 2*time.Minute + 2*time.Second
	DefaultFactor  = 2
	DefaultJitter  = 0.1
)

// Policy has the parameters of the waits. A zero field has the default.
type Policy struct {
	// Initial is the wait after the first failure.
	Initial time.Duration
	// Max bounds every wait.
	Max time.Duration
	// Factor is how much longer each wait is than the one before; less than 1 means 1.
	Factor float64
	// Jitter is the largest part that is subtracted from a wait, between 0 and 1; less than zero means none.
	Jitter float64
}

// WithDefaults returns the policy with defaults for zero fields, and with the others limited to their bounds. It is idempotent.
func (p Policy) WithDefaults() Policy {
	if p.Initial <= 0 {
		p.Initial = DefaultInitial
	}
	if p.Max <= 0 {
		p.Max = DefaultMax
	}
	if p.Factor == 0 {
		p.Factor = DefaultFactor
	}
	if p.Jitter == 0 {
		p.Jitter = DefaultJitter
	}
	p.Factor = max(p.Factor, 1)
	p.Jitter = min(p.Jitter, 1)
	return p
}

// Delay returns how long to wait after that many failures in a row; zero after none.
func (p Policy) Delay(failures int) time.Duration {
	if failures <= 0 {
		return 0
	}
	p = p.WithDefaults()
	delay := min(float64(p.Initial), float64(p.Max))
	for n := 1; n < failures && p.Factor > 1 && delay < float64(p.Max); n++ {
		delay = min(delay*p.Factor, float64(p.Max))
	}
	wait := p.Max // The float of a great Max is more than a Duration can hold.
	if delay < float64(p.Max) {
		wait = time.Duration(delay)
	}
	return wait - time.Duration(float64(wait)*max(p.Jitter, 0)*rand.Float64()) // Jitter needs no secrecy.
}
