package ownership

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/internal/outcome"
)

// recorder keeps events as lines.
type recorder struct{ lines []string }

func (r *recorder) Eventf(object runtime.Object, eventtype, reason, messageFmt string, args ...any) {
	name := ""
	if pod, ok := object.(*v1.Pod); ok {
		name = pod.Name
	}
	r.lines = append(r.lines, fmt.Sprintf("%s %s %s: %s", name, eventtype, reason, fmt.Sprintf(messageFmt, args...)))
}

var pod = &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "uid-1"}}

const podDir = "/var/lib/agent/pods/uid-1/volumes/data"

// TestWordsOfWorkThatTakesLong holds that they come after 30 seconds and then each minute, and end with the work.
func TestWordsOfWorkThatTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := &recorder{}
		var told []Progress
		gid := int64(7)
		w := newWork(podDir, Options{
			Group: &gid, Events: events, Pod: pod, Progress: func(p Progress) { told = append(told, p) },
		})
		w.counter().visited.Add(40)
		w.counter().visited.Add(2)
		done := make(chan struct{})
		time.AfterFunc(151*time.Second, func() { close(done) })
		w.watch(t.Context(), done)

		want := []Progress{
			{Dir: podDir, Elapsed: 30 * time.Second, Counts: Counts{Visited: 42}},
			{Dir: podDir, Elapsed: 90 * time.Second, Counts: Counts{Visited: 42}},
			{Dir: podDir, Elapsed: 150 * time.Second, Counts: Counts{Visited: 42}},
		}
		assert.Equal(t, want, told)
		assert.Equal(t, []string{
			"web Warning VolumePermissionChangeInProgress: giving the volume uid-1/volumes/data to group 7 takes longer than " +
				"30s, 42 files until now; consider fsGroupChangePolicy OnRootMismatch",
			"web Warning VolumePermissionChangeInProgress: giving the volume uid-1/volumes/data to group 7 has taken 1m30s, " +
				"42 files until now",
			"web Warning VolumePermissionChangeInProgress: giving the volume uid-1/volumes/data to group 7 has taken 2m30s, " +
				"42 files until now",
		}, events.lines)
	})
}

func TestWorkThatEndsInTimeIsNotSpokenOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := &recorder{}
		w := newWork(podDir, Options{Group: new(int64), Events: events, Pod: pod})
		done := make(chan struct{})
		time.AfterFunc(29*time.Second, func() { close(done) })
		w.watch(t.Context(), done)
		ctx, cancel := context.WithTimeout(t.Context(), 29*time.Second)
		defer cancel()
		w.watch(ctx, nil)
		assert.Empty(t, events.lines)
	})
}

func TestProgressAndEventsAreOptional(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := &recorder{}
		for _, o := range []Options{{}, {Events: events}, {Pod: pod}} {
			o.Group = new(int64)
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			newWork(podDir, o).watch(ctx, nil)
			cancel()
		}
		assert.Empty(t, events.lines)
	})
}

func TestPathsOfTheNodeStayOutOfEvents(t *testing.T) {
	for dir, want := range map[string]string{
		podDir: "uid-1/volumes/data", "/var/lib/agent/plugins/x/mounts/pv-1/": "pv-1", "/a/uid-10/b": "b", "/": "",
	} {
		assert.Equal(t, want, newWork(dir, Options{Pod: pod}).shortDir(), dir)
	}
}

// TestCallIsLeftBehindAfterAMoment holds that work which stops by itself is waited for, and other work is not.
func TestCallIsLeftBehindAfterAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		own := errors.New("stopped")
		err := start(ctx, func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(grace - 1)
			return own
		}).wait(ctx, "/v")
		require.ErrorIs(t, err, own)
		release := make(chan struct{})
		hung := start(ctx, func(context.Context) error { <-release; return nil })
		err = hung.wait(ctx, "/v")
		require.ErrorIs(t, err, ErrUncertain)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, time.Second+2*grace-1, time.Since(began))
		var lost *outcome.AbandonedError
		require.ErrorAs(t, err, &lost)
		assert.True(t, lost.Uncertain())
		assert.Equal(t, `ownership of "/v" has not returned and was abandoned: context deadline exceeded`, err.Error())
		close(release)
		<-lost.Done()
	})
}

func TestFailuresAreCountedAndEachKindIsKept(t *testing.T) {
	f := failures{most: 3}
	require.NoError(t, f.err("/v"))
	add := func(n int, errno syscall.Errno) {
		for i := range n {
			f.add(&fs.PathError{Op: "chown", Path: fmt.Sprint("/v/", i), Err: errno})
		}
	}
	add(1000, syscall.EPERM)
	add(500, syscall.ENOSPC)
	add(2, syscall.EPERM)
	f.add(&fs.PathError{Op: "chown", Path: "/v/x", Err: ErrNotKept})
	f.add(&fs.PathError{Op: "chown", Path: "/v/y", Err: ErrNotKept})
	err := f.err("/v")
	var failed *FailedError
	require.ErrorAs(t, err, &failed)
	assert.EqualValues(t, 1504, failed.Total)
	assert.Len(t, failed.Failures, 5)
	for _, want := range []error{syscall.EPERM, syscall.ENOSPC, ErrNotKept, fs.ErrPermission} {
		require.ErrorIs(t, err, want)
	}
	assert.Equal(t, `ownership of "/v": 1504 failed: chown /v/0: operation not permitted; chown /v/1: operation not permitted; `+
		`chown /v/2: operation not permitted; chown /v/0: no space left on device; and 1500 more; mend the cause and try again`,
		err.Error())
	f.add(errors.New("later"))
	assert.EqualValues(t, 1504, failed.Total, "what was returned does not change")
}
