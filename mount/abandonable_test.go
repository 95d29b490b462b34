package mount

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
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
		found, err := RunAbandonable(ctx, "stat", "/dead", func() (string, error) {
			close(started)
			<-release
			return "too late", nil
		})
		assert.Empty(t, found)
		require.ErrorIs(t, err, ErrUncertain)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, `stat of "/dead"`)
		var lost *AbandonedError
		require.ErrorAs(t, err, &lost)
		select {
		case <-lost.Done():
			t.Fatal("the call is said to have ended, and has not")
		default:
		}
		close(release)
		<-lost.Done()

		_, err = RunAbandonable(ctx, "stat", "/dead", func() (string, error) { return "", errors.New("it was begun") })
		require.ErrorIs(t, err, ErrTransient)
		require.ErrorIs(t, err, context.Canceled)
	})
}

func TestACallThatReturnsIsWaitedFor(t *testing.T) {
	cause := errors.New("no such thing")
	found, err := RunAbandonable(t.Context(), "stat", "/", func() (string, error) { return "a part", cause })
	require.ErrorIs(t, err, cause)
	assert.Equal(t, "a part", found)
}
