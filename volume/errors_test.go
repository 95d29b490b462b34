package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/outcome"
)

func twice(err error) error {
	return &Error{Op: "volume_mount", Plugin: "a.b/c", Volume: "a.b/c/d", Err: fmt.Errorf("wrapped: %w", err)}
}

func TestSentinelsSurviveTwoWraps(t *testing.T) {
	for _, sentinel := range []error{
		ErrUncertain, ErrTransient, ErrNoPlugin, ErrMultiplePlugins, ErrUnsupported, ErrInUse, ErrInfeasible, ErrInvalid,
	} {
		require.ErrorIs(t, twice(sentinel), sentinel)
		assert.NotErrorIs(t, twice(errors.New(sentinel.Error())), sentinel, "matched by identity, not by text")
	}
}

func TestMarks(t *testing.T) {
	cause := &fs.PathError{Op: "mount", Path: "/x", Err: fs.ErrPermission}
	for name, tc := range map[string]struct {
		mark func(error) error
		want outcome.Class
	}{
		"uncertain": {Uncertain, outcome.Uncertain},
		"transient": {Transient, outcome.Transient},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, tc.mark(nil))
			marked := tc.mark(cause)
			require.EqualError(t, marked, cause.Error(), "the text stays")
			assert.Equal(t, tc.want, outcome.ClassOf(twice(marked)))
			require.ErrorIs(t, twice(marked), fs.ErrPermission)
			var path *fs.PathError
			require.ErrorAs(t, twice(marked), &path)
			assert.Same(t, marked, tc.mark(marked), "marking again changes nothing")
		})
	}
	assert.Equal(t, outcome.Uncertain, outcome.ClassOf(Transient(Uncertain(cause))), "uncertain wins")
	assert.Equal(t, outcome.Uncertain, outcome.ClassOf(Uncertain(Transient(cause))), "uncertain wins")
}

func TestErrorText(t *testing.T) {
	cause := errors.New("no route to host")
	require.EqualError(t, &Error{Op: "volume_mount", Plugin: "a.b/c", Volume: "a.b/c/d", Err: cause},
		`volume_mount of volume "a.b/c/d" by plugin "a.b/c": no route to host`)
	require.EqualError(t, &Error{Op: "volume_mount", Err: cause}, `volume_mount: no route to host`)

	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	require.EqualError(t, &PendingError{Op: "volume_mount", Running: "volume_detach", Volume: "a.b/c/d", Since: at},
		`volume_mount of volume "a.b/c/d" did not start: volume_detach is running since 2026-01-02T03:04:05Z`)

	backoff := &BackoffError{Op: "volume_mount", Volume: "a.b/c/d", Attempts: 3, Until: at, Err: cause}
	require.EqualError(t, backoff,
		`volume_mount of volume "a.b/c/d" waits until 2026-01-02T03:04:05Z after 3 failures: no route to host`)
	require.ErrorIs(t, twice(backoff), cause)
}

func TestNotReadyError(t *testing.T) {
	cause := errors.New("no route to host")
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	err := &NotReadyError{
		PodName: types.NamespacedName{Namespace: "default", Name: "web"},
		Volumes: []NotReadyVolume{
			{OuterName: "data", Phase: "staging", Err: Uncertain(cause), NextTry: at},
			{OuterName: "logs", Phase: "waiting for its claim"},
		},
		Err: context.DeadlineExceeded,
	}
	require.EqualError(t, err, `volumes of pod "default/web" are not ready: "data" is staging: no route to host, `+
		`next try at 2026-01-02T03:04:05Z; "logs" is waiting for its claim (context deadline exceeded)`)
	wrapped := twice(err)
	require.ErrorIs(t, wrapped, cause)
	require.ErrorIs(t, wrapped, ErrUncertain)
	require.ErrorIs(t, wrapped, context.DeadlineExceeded)
	var notReady *NotReadyError
	require.ErrorAs(t, wrapped, &notReady)
	assert.Len(t, notReady.Volumes, 2)
	err.Awaited = "gone"
	assert.Contains(t, err.Error(), `volumes of pod "default/web" are not gone: `)
	assert.EqualError(t, &NotReadyError{Awaited: "gone"}, "volumes of the node are not gone")
	assert.Empty(t, (&NotReadyError{Volumes: []NotReadyVolume{{}}}).Unwrap())
}
