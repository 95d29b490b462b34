package mount

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestACallOnADeadFilesystemIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		release, started := make(chan struct{}), make(chan struct{})
		go func() {
			<-started
			cancel()
		}()
		err := LeaveBehind(ctx, "stat", "/dead", func() error {
			close(started)
			<-release
			return nil
		})
		require.ErrorIs(t, err, ErrUncertain)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, `stat of "/dead"`)
		var lost *LostError
		require.ErrorAs(t, err, &lost)
		select {
		case <-lost.Done():
			t.Fatal("the call is said to have ended, and has not")
		default:
		}
		close(release)
		<-lost.Done()

		err = LeaveBehind(ctx, "stat", "/dead", func() error { return errors.New("it was begun") })
		require.ErrorIs(t, err, ErrTransient)
		require.ErrorIs(t, err, context.Canceled)
	})
}

func TestACallThatReturnsIsWaitedFor(t *testing.T) {
	cause := errors.New("no such thing")
	require.ErrorIs(t, LeaveBehind(t.Context(), "stat", "/", func() error { return cause }), cause)
	require.NoError(t, LeaveBehind(t.Context(), "stat", "/", func() error { return nil }))
}
