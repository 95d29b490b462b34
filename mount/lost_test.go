package mount

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/outcome"
)

func testCalls(maxLost int) *calls {
	return newCalls(maxLost, slog.New(slog.DiscardHandler))
}

// hang returns an operation that does not return before release is called.
func hang(result error) (op operation, release func()) {
	until := make(chan struct{})
	return func(ctx context.Context, s *steps) error {
		if err := s.begin(ctx, "umount2"); err != nil {
			return err
		}
		<-until
		return result
	}, func() { close(until) }
}

func nothing(context.Context, *steps) error { return nil }

func TestCallThatReturnsGivesItsError(t *testing.T) {
	want := errors.New("refused")
	c := testCalls(1)
	err := c.do(t.Context(), callKey{change, "/a"}, func(context.Context, *steps) error { return want })
	assert.Equal(t, want, err)
	assert.Empty(t, c.slots)
}

func TestCallIsLostWhenTheContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testCalls(10)
		op, release := hang(nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()

		err := c.do(ctx, callKey{change, "/a"}, op)

		var lost *LostError
		require.ErrorAs(t, err, &lost)
		assert.Equal(t, "umount2", lost.Call)
		assert.Equal(t, "/a", lost.Path)
		assert.True(t, lost.Uncertain())
		require.ErrorIs(t, err, ErrUncertain)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, outcome.Uncertain, outcome.ClassOf(err))
		assert.Contains(t, err.Error(), `umount2 of "/a"`)
		assert.Equal(t, []LostCall{{Call: "umount2", Path: "/a"}}, c.lost())

		stuck := c.do(t.Context(), callKey{change, "/a"}, nothing)
		require.ErrorIs(t, stuck, ErrStuck)
		assert.Equal(t, outcome.Transient, outcome.ClassOf(stuck))
		require.NoError(t, c.do(t.Context(), callKey{change, "/b"}, nothing), "another path")
		require.NoError(t, c.do(t.Context(), callKey{look, "/a"}, nothing), "only a look")

		release()
		<-lost.Done()
		assert.Empty(t, c.lost())
		require.NoError(t, c.do(t.Context(), callKey{change, "/a"}, nothing), "after the end")
	})
}

func TestCallWaitsForTheOneBeforeAtItsPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testCalls(10)
		op, release := hang(nil)
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- c.do(t.Context(), callKey{change, "/a"}, op) }()
		synctest.Wait()
		go func() { second <- c.do(t.Context(), callKey{change, "/a"}, nothing) }()
		synctest.Wait()
		assert.Empty(t, second, "the second has not begun")

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := c.do(ctx, callKey{change, "/a"}, nothing)
		require.ErrorIs(t, err, ErrTransient)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		release()
		require.NoError(t, <-first)
		require.NoError(t, <-second)
	})
}

func TestCallThatWaitsIsStuckWhenTheOneBeforeIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testCalls(10)
		op, release := hang(nil)
		ctx, cancel := context.WithCancel(t.Context())
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- c.do(ctx, callKey{change, "/a"}, op) }()
		synctest.Wait()
		go func() { second <- c.do(t.Context(), callKey{change, "/a"}, nothing) }()
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-first, ErrUncertain)
		require.ErrorIs(t, <-second, ErrStuck)
		release()
	})
}

func TestNoCallStartsWhenTooManyAreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testCalls(2)
		var lost []*LostError
		var releases []func()
		for _, path := range []string{"/a", "/b"} {
			op, release := hang(nil)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			var err *LostError
			require.ErrorAs(t, c.do(ctx, callKey{change, path}, op), &err)
			lost, releases = append(lost, err), append(releases, release)
		}
		begun := false
		err := c.do(t.Context(), callKey{change, "/c"}, func(context.Context, *steps) error {
			begun = true
			return nil
		})
		require.ErrorIs(t, err, ErrStuck)
		require.ErrorIs(t, err, ErrTransient)
		assert.False(t, begun)

		releases[0]()
		<-lost[0].Done()
		require.NoError(t, c.do(t.Context(), callKey{change, "/c"}, nothing))
		releases[1]()
	})
}

func TestLostCallBeginsNothingMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testCalls(1)
		until, ended := make(chan struct{}), make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := c.do(ctx, callKey{change, "/a"}, func(ctx context.Context, s *steps) error {
			<-until
			ended <- s.begin(ctx, "move_mount")
			return nil
		})
		require.ErrorIs(t, err, ErrUncertain)
		close(until)
		require.ErrorIs(t, <-ended, context.DeadlineExceeded)
	})
}
