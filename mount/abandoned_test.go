package mount

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/internal/outcome"
)

// hang returns an operation that does not return before release is called.
func hang() (op func(context.Context) error, release func()) {
	until := make(chan struct{})
	return func(ctx context.Context) error {
		if err := abandonable.Begin(ctx, "umount2"); err != nil {
			return err
		}
		<-until
		return nil
	}, func() { close(until) }
}

func nothing(context.Context) error { return nil }

// TestCallIsLostWhenTheContextEnds holds what this package says of abandoned calls; the rest is tested where they are run.
func TestCallIsLostWhenTheContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Options{})
		op, release := hang()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()

		err := m.calls.Do(ctx, abandonable.Key{Path: "/a"}, op)

		var lost *AbandonedError
		require.ErrorAs(t, err, &lost)
		assert.Equal(t, "umount2", lost.Call)
		assert.Equal(t, "/a", lost.Path)
		assert.True(t, lost.Uncertain())
		require.ErrorIs(t, err, ErrUncertain)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, outcome.Uncertain, outcome.ClassOf(err))
		assert.Contains(t, err.Error(), `umount2 of "/a"`)
		assert.Equal(t, []AbandonedCall{{Call: "umount2", Path: "/a"}}, m.Abandoned())

		stuck := m.calls.Do(t.Context(), abandonable.Key{Path: "/a"}, nothing)
		require.ErrorIs(t, stuck, ErrStuck)
		assert.Equal(t, outcome.Transient, outcome.ClassOf(stuck))

		release()
		<-lost.Done()
		assert.Empty(t, m.Abandoned())
		require.NoError(t, m.calls.Do(t.Context(), abandonable.Key{Path: "/a"}, nothing), "after the end")
	})
}

func TestLostCallsAreBounded(t *testing.T) {
	for options, want := range map[int]int{-1: DefaultMaxAbandoned, 0: DefaultMaxAbandoned, 2: 2} {
		synctest.Test(t, func(t *testing.T) {
			m := New(Options{MaxAbandoned: options})
			op, release := hang()
			defer release()
			ctx, cancel := context.WithCancel(t.Context())
			results := make(chan error, want)
			for i := range want {
				go func() { results <- m.calls.Do(ctx, abandonable.Key{Path: string(rune('a' + i))}, op) }()
			}
			synctest.Wait()
			require.NoError(t, m.calls.Do(t.Context(), abandonable.Key{Path: "other"}, nothing), "no call is abandoned yet")
			cancel()
			for range want {
				var lost *AbandonedError
				assert.ErrorAs(t, <-results, &lost)
			}
			err := m.calls.Do(t.Context(), abandonable.Key{Path: "other"}, func(context.Context) error {
				return errors.New("it was begun")
			})
			require.ErrorIs(t, err, ErrStuck)
			require.ErrorIs(t, err, ErrTransient)
		})
	}
}
