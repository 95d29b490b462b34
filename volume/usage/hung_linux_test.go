package usage

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// TestHungServerHoldsUpItsCallerUntilItsContextEnds lets a server hang in every call that a measurement makes. The caller
// leaves, nothing starts beside the abandoned call, others go on, and all is well when the server is back.
func TestHungServerHoldsUpItsCallerUntilItsContextEnds(t *testing.T) {
	measure := func(ctx context.Context, m *Measurer, path string) error {
		_, err := m.Measure(ctx, path)
		return err
	}
	statfs := func(ctx context.Context, m *Measurer, path string) error {
		_, err := m.FS(ctx, path, Expect{MountPoint: true})
		return err
	}
	for name, tc := range map[string]struct {
		op    mounttest.FUSEOp
		paths []string
		call  string
		begin func(context.Context, *Measurer, string) error
	}{
		"opening a directory": {mounttest.FUSEOpendir, []string{"dir"}, "walk", measure},
		"reading a directory": {mounttest.FUSEReaddir, []string{"dir"}, "walk", measure},
		"opening the root":    {mounttest.FUSEOpendir, []string{"."}, "walk", measure},
		"looking up a file":   {mounttest.FUSELookup, []string{"dir/file-7"}, "walk", measure},
		"statfs":              {mounttest.FUSEStatfs, nil, "statfs", statfs},
	} {
		t.Run(name, func(t *testing.T) {
			server := newServer(t)
			healthy, m := t.TempDir(), &Measurer{}
			server.Hang(tc.op, tc.paths...)
			ctx, cancel := context.WithCancel(t.Context())
			result := make(chan error, 1)
			go func() { result <- tc.begin(ctx, m, server.Path()) }()
			server.Await(tc.op)
			cancel()
			err := <-result
			checkLost(t, m, err, AbandonedCall{Call: tc.call, Path: server.Path()})

			for _, again := range []func(context.Context, *Measurer, string) error{measure, statfs} {
				soon, stop := context.WithTimeout(t.Context(), time.Minute)
				err := again(soon, m, server.Path()+"/") // another name of the same path
				stop()
				require.ErrorIs(t, err, ErrStuck)
				assert.Equal(t, outcome.Transient, outcome.ClassOf(err))
				require.ErrorContains(t, err, server.Path())
			}
			require.NoError(t, measure(t.Context(), m, healthy), "others go on")

			server.Heal()
			<-outcome.DoneOf(err)
			assert.Empty(t, m.Abandoned())
			require.NoError(t, measure(t.Context(), m, server.Path()))
			require.NoError(t, statfs(t.Context(), m, server.Path()))
		})
	}
}

func newServer(t *testing.T) *mounttest.FUSE {
	t.Helper()
	files := map[string]string{}
	for i := range 20 {
		files[fmt.Sprintf("dir/file-%d", i)] = "content"
	}
	return mounttest.NewFUSE(t, mounttest.FUSEOptions{Files: files})
}

func checkLost(t *testing.T, m *Measurer, err error, want AbandonedCall) {
	t.Helper()
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, outcome.Uncertain, outcome.ClassOf(err))
	var lost *outcome.AbandonedError
	require.ErrorAs(t, err, &lost)
	assert.Equal(t, want, AbandonedCall{Call: lost.Call, Path: lost.Path})
	assert.True(t, lost.Uncertain())
	assert.Equal(t, []AbandonedCall{want}, m.Abandoned())
	require.NotNil(t, outcome.DoneOf(err))
	select {
	case <-outcome.DoneOf(err):
		t.Fatal("done while the server still hangs")
	default:
	}
}

// TestLostWalkHoldsNothingAfterwards holds that a walk that was abandoned closes what it had open.
func TestLostWalkHoldsNothingAfterwards(t *testing.T) {
	server := newServer(t)
	before := openDescriptors(t)
	server.Hang(mounttest.FUSEReaddir, "dir")
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := Measure(ctx, server.Path())
		result <- err
	}()
	server.Await(mounttest.FUSEReaddir)
	cancel()
	err := <-result
	require.NotNil(t, outcome.DoneOf(err))
	assert.Greater(t, openDescriptors(t), before)
	server.Heal()
	<-outcome.DoneOf(err)
	assert.Equal(t, before, openDescriptors(t))
}

// TestSickServerIsAnError holds that an answer that would be too small is none.
func TestSickServerIsAnError(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EIO, unix.ESTALE} {
		for op, path := range map[mounttest.FUSEOp]string{
			mounttest.FUSEReaddir: "dir", mounttest.FUSEOpendir: "dir", mounttest.FUSELookup: "dir/file-3",
		} {
			server := newServer(t)
			server.Fail(op, errno, path)
			used, err := Measure(t.Context(), server.Path())
			require.ErrorIs(t, err, errno, path)
			var at *fs.PathError
			require.ErrorAs(t, err, &at)
			assert.Equal(t, filepath.Join(server.Path(), path), at.Path)
			assert.Zero(t, used)
		}
	}
	server := newServer(t)
	server.Fail(mounttest.FUSEStatfs, unix.EIO)
	_, err := FS(t.Context(), server.Path(), Expect{MountPoint: true})
	require.ErrorIs(t, err, unix.EIO)

	server.Kill()
	_, err = Measure(t.Context(), server.Path())
	require.ErrorIs(t, err, unix.ENOTCONN)
	_, err = FS(t.Context(), server.Path(), Expect{MountPoint: true})
	require.ErrorIs(t, err, unix.ENOTCONN)
}

// TestHungServerBelowATreeIsNotWaitedFor mounts a server that answers nothing into a tree.
func TestHungServerBelowATreeIsNotWaitedFor(t *testing.T) {
	mounttest.RequireMounts(t)
	root := t.TempDir()
	write(t, filepath.Join(root, "file"), 1)
	dead := filepath.Join(root, "dead")
	require.NoError(t, os.Mkdir(dead, 0o750))
	server := mounttest.NewFUSE(t, mounttest.FUSEOptions{Target: dead, Files: map[string]string{"file": "x"}})
	server.Hang(mounttest.FUSEAny)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got, err := Measure(ctx, root)
	require.NoError(t, err)
	assert.EqualValues(t, 2, got.Inodes)
	_, err = FS(ctx, dead, Expect{Device: 1})
	require.ErrorIs(t, err, ErrWrongFilesystem, "the check asks no server")
}

// TestWalkIsCancelledPromptly cancels a walk in the middle of a directory that is long to read, by a server that does not
// hang: nothing is abandoned.
func TestWalkIsCancelledPromptly(t *testing.T) {
	server := newServer(t)
	server.Hang(mounttest.FUSELookup, "dir/file-3")
	ctx, cancel := context.WithCancel(t.Context())
	m := &Measurer{}
	result := make(chan error, 1)
	go func() {
		_, err := m.Measure(ctx, server.Path())
		result <- err
	}()
	server.Await(mounttest.FUSELookup)
	before := server.Count(mounttest.FUSELookup)
	cancel()
	server.Heal()
	err := <-result
	require.ErrorIs(t, err, context.Canceled)
	assert.LessOrEqual(t, server.Count(mounttest.FUSELookup)-before, 8, "no worker begins another file")
}
