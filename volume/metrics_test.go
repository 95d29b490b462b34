package volume

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/outcome"
)

// provider is a MetricsProvider made of a function.
type provider func(context.Context) (*Metrics, error)

func (p provider) GetMetrics(ctx context.Context) (*Metrics, error) { return p(ctx) }

func TestMetricsNil(t *testing.T) {
	var none struct{ MetricsNil }
	metrics, err := none.GetMetrics(t.Context())
	require.ErrorIs(t, err, ErrUnsupported)
	assert.Nil(t, metrics)
}

func TestMetricsWithoutPath(t *testing.T) {
	for _, p := range []MetricsProvider{NewMetricsStatFS(""), NewMetricsBlock(""), NewMetricsDu(""), &Dir{}} {
		metrics, err := p.GetMetrics(t.Context())
		require.ErrorIs(t, err, ErrInvalid, "%T", p)
		assert.Nil(t, metrics)
	}
}

// TestHungStatFSIsLeftBehindOnce holds that a caller leaves when its context ends, that the error says when the call
// ends, and that no second call starts beside the lost one.
func TestHungStatFSIsLeftBehindOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		server := make(chan struct{})
		m := NewMetricsStatFS("/mnt/dead")
		m.statfs = func(context.Context) (*Metrics, error) {
			calls.Add(1)
			<-server
			return &Metrics{Capacity: bytes(1)}, nil
		}

		var lost []error
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			start := time.Now()
			_, err := m.GetMetrics(ctx)
			cancel()
			assert.Equal(t, time.Minute, time.Since(start))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, err, ErrUncertain)
			require.ErrorContains(t, err, `statfs of "/mnt/dead"`)
			lost = append(lost, fmt.Errorf("one: %w", fmt.Errorf("two: %w", err)))
		}
		assert.EqualValues(t, 1, calls.Load())
		for _, err := range lost {
			assert.Equal(t, outcome.Uncertain, outcome.ClassOf(err))
			done := outcome.DoneOf(err)
			require.NotNil(t, done)
			select {
			case <-done:
				t.Fatal("done while the call still hangs")
			default:
			}
		}
		close(server)
		for _, err := range lost {
			<-outcome.DoneOf(err)
		}
		metrics, err := m.GetMetrics(t.Context())
		require.NoError(t, err, "works again when the server is back")
		assert.EqualValues(t, 1, metrics.Capacity.Value())
		assert.EqualValues(t, 2, calls.Load())
	})
}

func TestContextThatEndedAlready(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		m := NewMetricsStatFS("/")
		m.statfs = func(context.Context) (*Metrics, error) { t.Error("it was begun"); return &Metrics{}, nil }
		_, err := m.GetMetrics(ctx)
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, outcome.Transient, outcome.ClassOf(err))
	})
}

func TestCachedMetricsKeepsASuccessForItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		m := NewCachedMetrics(provider(func(context.Context) (*Metrics, error) {
			calls++
			return &Metrics{Used: bytes(int64(calls))}, nil
		}), time.Minute)
		ask := func() int64 {
			metrics, err := m.GetMetrics(t.Context())
			require.NoError(t, err)
			return metrics.Used.Value()
		}
		assert.EqualValues(t, 1, ask())
		time.Sleep(time.Minute - 1)
		assert.EqualValues(t, 1, ask())
		time.Sleep(time.Nanosecond)
		assert.EqualValues(t, 2, ask())
	})
}

func TestCachedMetricsKeepsNoError(t *testing.T) {
	calls := 0
	cause := errors.New("no route to host")
	m := NewCachedMetrics(provider(func(context.Context) (*Metrics, error) {
		calls++
		return nil, cause
	}), time.Hour)
	for range 3 {
		metrics, err := m.GetMetrics(t.Context())
		require.ErrorIs(t, err, cause)
		assert.Nil(t, metrics)
	}
	assert.Equal(t, 3, calls)
}

func TestCachedMetricsShareOneCallAndNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		m := NewCachedMetrics(provider(func(context.Context) (*Metrics, error) {
			calls.Add(1)
			time.Sleep(time.Second)
			return &Metrics{Used: bytes(7), Inodes: count(3)}, nil
		}), time.Minute)
		answers := make([]*Metrics, 16)
		var wg sync.WaitGroup
		for i := range answers {
			wg.Go(func() {
				var err error
				answers[i], err = m.GetMetrics(t.Context())
				assert.NoError(t, err)
				answers[i].Used.Set(int64(i)) // the answer is the caller's own
				_ = answers[i].Inodes.String()
			})
		}
		wg.Wait()
		assert.EqualValues(t, 1, calls.Load())
		for range 2 {
			kept, err := m.GetMetrics(t.Context())
			require.NoError(t, err)
			assert.EqualValues(t, 7, kept.Used.Value())
			kept.Used.Set(8)
		}
		for i, answer := range answers {
			assert.EqualValues(t, i, answer.Used.Value())
		}
	})
}

// TestSharedCallOutlivesItsFirstCaller holds that the call goes on while a caller waits for it, that it ends when the
// last has left, and that who comes after that gets a call of its own.
func TestSharedCallOutlivesItsFirstCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		m := NewCachedMetrics(provider(func(ctx context.Context) (*Metrics, error) {
			calls.Add(1)
			select {
			case <-ctx.Done():
				time.Sleep(time.Second) // to clean up
				return nil, ctx.Err()
			case <-time.After(time.Hour):
				return &Metrics{Used: bytes(1)}, nil
			}
		}), time.Nanosecond)
		ask := func(after time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), after)
			defer cancel()
			_, err := m.GetMetrics(ctx)
			return err
		}

		var wg sync.WaitGroup
		wg.Go(func() { assert.ErrorIs(t, ask(time.Second), context.DeadlineExceeded) })
		synctest.Wait()
		wg.Go(func() { assert.NoError(t, ask(2*time.Hour)) })
		wg.Wait()
		assert.EqualValues(t, 1, calls.Load(), "the second caller joined the call of the first")

		time.Sleep(time.Nanosecond) // what was kept is too old now
		lost := ask(time.Minute)
		require.ErrorIs(t, lost, context.DeadlineExceeded)
		start := time.Now()
		require.NoError(t, ask(2*time.Hour), "does not join a call that was cancelled")
		assert.Equal(t, time.Second+time.Hour, time.Since(start), "waits for the end of the cancelled call")
		assert.EqualValues(t, 3, calls.Load())
		<-outcome.DoneOf(lost)
	})
}

// TestCachedMetricsWaitsForWhatItsProviderLeftBehind holds that Done speaks of the system call, not of its wrapper.
func TestCachedMetricsWaitsForWhatItsProviderLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := make(chan struct{})
		inner := NewMetricsStatFS("/mnt/dead")
		inner.statfs = func(context.Context) (*Metrics, error) { <-server; return &Metrics{}, nil }
		m := NewCachedMetrics(inner, time.Minute)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := m.GetMetrics(ctx)
		require.ErrorIs(t, err, ErrUncertain)
		done := outcome.DoneOf(err)
		synctest.Wait()
		select {
		case <-done:
			t.Fatal("done while statfs still hangs")
		default:
		}
		close(server)
		<-done
	})
}

// TestNothingStartsBesideWhatAProviderLeftBehind holds that polling a dead server piles up neither calls nor goroutines.
func TestNothingStartsBesideWhatAProviderLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		server := make(chan struct{})
		inner := NewMetricsStatFS("/mnt/dead")
		inner.statfs = func(context.Context) (*Metrics, error) { <-server; return &Metrics{Capacity: bytes(1)}, nil }
		m := NewCachedMetrics(provider(func(ctx context.Context) (*Metrics, error) {
			calls.Add(1)
			return inner.GetMetrics(ctx)
		}), time.Minute)

		var lost []error
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := m.GetMetrics(ctx)
			cancel()
			require.ErrorIs(t, err, ErrUncertain)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			lost = append(lost, err)
			synctest.Wait()
		}
		assert.EqualValues(t, 1, calls.Load())
		close(server)
		for _, err := range lost {
			<-outcome.DoneOf(err)
		}
		metrics, err := m.GetMetrics(t.Context())
		require.NoError(t, err)
		assert.EqualValues(t, 1, metrics.Capacity.Value())
	})
}

func TestPanicOfAProviderIsAnError(t *testing.T) {
	m := NewCachedMetrics(provider(func(context.Context) (*Metrics, error) { panic("no idea") }), time.Minute)
	for range 2 {
		_, err := m.GetMetrics(t.Context())
		var panicked *PanicError
		require.ErrorAs(t, err, &panicked)
		assert.Equal(t, "no idea", panicked.Value)
	}
}

func TestGoexitOfAProviderIsAnError(t *testing.T) {
	m := NewCachedMetrics(provider(func(context.Context) (*Metrics, error) {
		runtime.Goexit()
		return nil, nil
	}), time.Minute)
	for range 2 {
		_, err := m.GetMetrics(t.Context())
		require.ErrorIs(t, err, errGoexit)
	}
}
