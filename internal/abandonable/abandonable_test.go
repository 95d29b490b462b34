package abandonable_test

import (
	"context"
	"errors"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/internal/outcome"
)

var errStuck = errors.New("stuck")

func newCalls(options abandonable.Options) *abandonable.Calls {
	options.Stuck = errStuck
	return abandonable.New(options)
}

func key(path string) abandonable.Key { return abandonable.Key{Path: path} }

// hang is an operation that ends when release is closed.
func hang(release <-chan struct{}) func(context.Context) error {
	return func(ctx context.Context) error {
		abandonable.Note(ctx, "hanging")
		<-release
		return abandonable.Begin(ctx, "after")
	}
}

// leave runs an operation that hangs, and returns when it is abandoned.
func leave(t *testing.T, c *abandonable.Calls, path string, release <-chan struct{}) *outcome.AbandonedError {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	result := make(chan error, 1)
	go func() { result <- c.Do(ctx, key(path), hang(release)) }()
	synctest.Wait()
	cause := errors.New("the user went home")
	cancel(cause)
	err := <-result
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, cause)
	var left *outcome.AbandonedError
	require.ErrorAs(t, err, &left)
	return left
}

func TestDo(t *testing.T) {
	c := newCalls(abandonable.Options{})
	fault := errors.New("fault")
	require.NoError(t, c.Do(t.Context(), key("a"), func(context.Context) error { return nil }))
	require.ErrorIs(t, c.Do(t.Context(), key("a"), func(context.Context) error { return fault }), fault)
	value, err := abandonable.Value(t.Context(), c, key("a"), func(context.Context) (int, error) { return 7, nil })
	require.NoError(t, err)
	assert.Equal(t, 7, value)
	value, err = abandonable.Value(t.Context(), c, key("a"), func(context.Context) (int, error) { return 7, fault })
	require.ErrorIs(t, err, fault)
	assert.Zero(t, value)
	require.NoError(t, abandonable.Begin(t.Context(), "outside of an operation"))
}

func TestAnEndedContextBeginsNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := newCalls(abandonable.Options{}).Do(ctx, key("a"), func(context.Context) error { t.Error("begun"); return nil })
	require.ErrorIs(t, err, outcome.ErrTransient)
	require.ErrorIs(t, err, context.Canceled)
}

func TestALostCallHoldsItsKeyAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, release := newCalls(abandonable.Options{}), make(chan struct{})
		left := leave(t, c, "a", release)
		assert.Equal(t, "hanging", left.Call)
		assert.Equal(t, []abandonable.Call{{Name: "hanging", Path: "a"}}, c.Abandoned())
		err := c.Do(t.Context(), key("a"), func(context.Context) error { t.Error("begun"); return nil })
		require.ErrorIs(t, err, errStuck)
		require.ErrorIs(t, err, outcome.ErrTransient)
		nothing := func(context.Context) error { return nil }
		require.NoError(t, c.Do(t.Context(), abandonable.Key{Look: true, Path: "a"}, nothing))
		require.NoError(t, c.Do(t.Context(), key("b"), nothing))
		close(release)
		<-left.Done()
		synctest.Wait()
		assert.Empty(t, c.Abandoned())
		require.NoError(t, c.Do(t.Context(), key("a"), nothing))
	})
}

func TestTooManyLostCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, release := newCalls(abandonable.Options{Max: 2}), make(chan struct{})
		leave(t, c, "a", release)
		second := leave(t, c, "b", release)
		err := c.Do(t.Context(), key("c"), func(context.Context) error { t.Error("begun"); return nil })
		require.ErrorIs(t, err, errStuck)
		close(release)
		<-second.Done()
		synctest.Wait()
		require.NoError(t, c.Do(t.Context(), key("c"), func(context.Context) error { return nil }))
	})
}

func TestOperationsOfOneKeyTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, release := newCalls(abandonable.Options{}), make(chan struct{})
		running := 0
		op := func(context.Context) error {
			running++
			assert.Equal(t, 1, running)
			<-release
			running--
			return nil
		}
		results := make(chan error, 3)
		for range cap(results) {
			go func() { results <- c.Do(t.Context(), key("a"), op) }()
		}
		synctest.Wait()
		close(release)
		for range cap(results) {
			require.NoError(t, <-results)
		}
	})
}

func TestWhoWaitsLearnsThatTheOtherWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, release := newCalls(abandonable.Options{}), make(chan struct{})
		defer close(release)
		ctx, cancel := context.WithCancel(t.Context())
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- c.Do(ctx, key("a"), hang(release)) }()
		synctest.Wait()
		go func() { second <- c.Do(t.Context(), key("a"), hang(release)) }()
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-first, context.Canceled)
		require.ErrorIs(t, <-second, errStuck)
	})
}

func TestGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCalls(abandonable.Options{Grace: time.Second})
		killed := errors.New("killed")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := c.Do(ctx, key("a"), func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(500 * time.Millisecond)
			return killed
		})
		require.ErrorIs(t, err, killed, "it ended by itself")

		release, start := make(chan struct{}), time.Now()
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var left *outcome.AbandonedError
		require.ErrorAs(t, c.Do(ctx, key("a"), hang(release)), &left)
		assert.Equal(t, time.Minute+time.Second, time.Since(start))
		close(release)
		<-left.Done()
	})
}

func TestAPanicIsTheCallers(t *testing.T) {
	c := newCalls(abandonable.Options{})
	assert.PanicsWithValue(t, "oops", func() {
		_ = c.Do(t.Context(), key("a"), func(context.Context) error { panic("oops") })
	})
	require.NoError(t, c.Do(t.Context(), key("a"), func(context.Context) error { return nil }), "its key is free")
}

func TestGoexitIsTheCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCalls(abandonable.Options{})
		ended, returned := make(chan struct{}), false
		go func() {
			defer close(ended)
			_ = c.Do(t.Context(), key("a"), func(context.Context) error { runtime.Goexit(); return nil })
			returned = true
		}()
		<-ended
		assert.False(t, returned)
		require.NoError(t, c.Do(t.Context(), key("a"), func(context.Context) error { return nil }), "its key is free")
	})
}

type valueKey struct{}

// TestAGuardedCallNeedsNoGoroutine: the watch abandons the caller together with the operation. Other operations then stop waiting at
// once.
func TestAGuardedCallNeedsNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, release := newCalls(abandonable.Options{}), make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		guarded := context.WithValue(abandonable.Guarded(ctx), valueKey{}, "value")
		result := make(chan error)
		var stack string
		go func() {
			result <- c.Do(guarded, key("a"), func(ctx context.Context) error {
				stack = string(debug.Stack())
				return hang(release)(ctx)
			})
		}()
		synctest.Wait()
		assert.Contains(t, stack, "TestAGuardedCallNeedsNoGoroutine.func1.1(", "its caller is on the stack")
		cancel()
		synctest.Wait()
		assert.Equal(t, []abandonable.Call{{Name: "hanging", Path: "a"}}, c.Abandoned())
		nothing := func(context.Context) error { return nil }
		require.ErrorIs(t, c.Do(t.Context(), key("a"), nothing), errStuck)
		close(release)
		require.ErrorIs(t, <-result, context.Canceled)
		synctest.Wait()
		assert.Empty(t, c.Abandoned())
		require.NoError(t, c.Do(t.Context(), key("a"), nothing))
	})
}

// TestACallerWhoNeverLeavesNeedsNoGoroutine: while its operation runs, other operations with the same key wait, up to their own
// deadlines.
func TestACallerWhoNeverLeavesNeedsNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, release := newCalls(abandonable.Options{}), make(chan struct{})
		result := make(chan error)
		var stack string
		go func() {
			result <- c.Do(context.WithoutCancel(t.Context()), key("a"), func(ctx context.Context) error {
				stack = string(debug.Stack())
				return hang(release)(ctx)
			})
		}()
		synctest.Wait()
		assert.Contains(t, stack, "TestACallerWhoNeverLeavesNeedsNoGoroutine.func1.1(", "its caller is on the stack")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, c.Do(ctx, key("a"), hang(release)), outcome.ErrTransient, "it waits for the other")
		close(release)
		require.NoError(t, <-result)
		require.NoError(t, c.Do(t.Context(), key("a"), func(context.Context) error { return nil }))
	})
}

// TestAShorterDeadlineWithinAGuardedCallIsKept: the operation runs in a goroutine of its own, as outside of a guarded call.
func TestAShorterDeadlineWithinAGuardedCallIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, release := newCalls(abandonable.Options{}), make(chan struct{})
		guarded, cancelAll := context.WithTimeout(t.Context(), time.Hour)
		defer cancelAll()
		ctx, cancel := context.WithTimeout(abandonable.Guarded(guarded), time.Second)
		defer cancel()
		var left *outcome.AbandonedError
		require.ErrorAs(t, c.Do(ctx, key("a"), hang(release)), &left)
		require.ErrorIs(t, left, context.DeadlineExceeded)
		close(release)
		<-left.Done()
	})
}
