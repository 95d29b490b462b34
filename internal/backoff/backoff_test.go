package backoff_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/backoff"
)

func TestDelaysAreThoseOfKubernetesWithoutJitter(t *testing.T) {
	policy := backoff.Policy{Jitter: -1}
	want := []time.Duration{
		0, 500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second,
		32 * time.Second, 64 * time.Second, 122 * time.Second, 122 * time.Second,
	}
	for failures, delay := range want {
		assert.Equal(t, delay, policy.Delay(failures), "after %d failures", failures)
	}
	assert.Equal(t, 122*time.Second, policy.Delay(math.MaxInt), "a great number of failures neither overflows nor takes long")
}

func TestJitterShortensAndNeverLengthens(t *testing.T) {
	policy := backoff.Policy{Initial: time.Second, Max: time.Minute, Jitter: 0.5}
	seen := map[time.Duration]bool{}
	for range 200 {
		delay := policy.Delay(3)
		require.LessOrEqual(t, delay, 4*time.Second)
		require.GreaterOrEqual(t, delay, 2*time.Second)
		seen[delay] = true
	}
	assert.Greater(t, len(seen), 1, "delays must differ")
}

func TestOddPoliciesAreBroughtIntoBounds(t *testing.T) {
	assert.Equal(t, time.Second, backoff.Policy{Initial: time.Hour, Max: time.Second, Jitter: -1}.Delay(1))
	assert.Equal(t, time.Second, backoff.Policy{Initial: time.Second, Factor: 0.1, Jitter: -1}.Delay(7))
	assert.GreaterOrEqual(t, backoff.Policy{Jitter: 9}.Delay(2), time.Duration(0))
	assert.Zero(t, backoff.Policy{}.Delay(-1))
}

// TestTheLongestBoundIsABound: as a float it is one more than a duration can hold.
func TestTheLongestBoundIsABound(t *testing.T) {
	policy := backoff.Policy{Max: math.MaxInt64, Jitter: -1}
	assert.Equal(t, time.Duration(math.MaxInt64), policy.Delay(1000))
	policy.Jitter = 1
	for range 100 {
		assert.GreaterOrEqual(t, policy.Delay(1000), time.Duration(0))
	}
}
