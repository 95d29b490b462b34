package rootlock

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume"
)

// TestACheckThatHangsIsAbandoned: a filesystem without a server hides the root. No further check waits for it.
func TestACheckThatHangsIsAbandoned(t *testing.T) {
	f := mounttest.NewFUSE(t, mounttest.FUSEOptions{})
	lock := &Lock{Path: t.TempDir()}
	require.NoError(t, lock.Take(t.Context()))
	require.NoError(t, unix.Mount(f.Path(), lock.Path, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(lock.Path, unix.MNT_DETACH) })
	f.Hang(mounttest.FUSEAny)
	ctx, cancel := context.WithCancel(t.Context())
	checked := make(chan error)
	go func() { checked <- lock.Check(ctx) }()
	f.Await(mounttest.FUSEAny)
	cancel()
	abandoned := <-checked
	require.ErrorIs(t, abandoned, context.Canceled)
	require.NotErrorIs(t, abandoned, volume.ErrUncertain)
	require.ErrorIs(t, lock.Check(t.Context()), volume.ErrTransient, "it does not wait beside the first one")

	f.Heal()
	<-outcome.DoneOf(abandoned)
	require.ErrorIs(t, lock.Check(t.Context()), ErrReplaced)
	require.NoError(t, unix.Unmount(lock.Path, 0))
	require.NoError(t, lock.Check(t.Context()))
	require.NoError(t, lock.Release())
}
