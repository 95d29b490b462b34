package mount_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

func TestUnmountHungDoesNotWaitForTheCallThatHangs(t *testing.T) {
	w := newFaultWorld(t, mount.Options{})
	target := w.root + "/target"
	mountTmpfs(t, w.Mounter, target)
	w.fuse.Hang(mounttest.FUSEAny)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- w.bind(ctx, w.fuse.Path()+"/dir", target) }()
	w.fuse.Await(mounttest.FUSEAny)
	cancel()
	var lost *mount.AbandonedError
	require.ErrorAs(t, <-result, &lost)
	require.ErrorIs(t, w.Unmount(t.Context(), target, plain), mount.ErrStuck)

	require.ErrorIs(t, w.UnmountHung(t.Context(), target, plain), mount.ErrInvalid, "the caller did not name the expected mount")
	other := mount.UnmountOptions{Expect: mount.Identity{FSType: "ext4"}}
	require.ErrorIs(t, w.UnmountHung(t.Context(), target, other), mount.ErrForeign)
	meant := mount.UnmountOptions{Expect: lineOf(t, w.Mounter, target).Identity()}
	require.NoError(t, w.UnmountHung(t.Context(), target, meant))
	assert.Zero(t, mountsAt(t, w.Mounter, target))
	w.fuse.Kill()
	<-lost.Done()
}

func TestUnmountHungThrowsOutWhoHangs(t *testing.T) {
	w := newFaultWorld(t, mount.Options{})
	w.fuse.Hang(mounttest.FUSEAny)
	hung := make(chan error, 1)
	go func() { hung <- w.SyncFS(t.Context(), w.fuse.Path()) }()
	w.fuse.Await(mounttest.FUSEAny)
	options := mount.UnmountOptions{Force: time.Millisecond, Expect: lineOf(t, w.Mounter, w.fuse.Path()).Identity()}
	require.NoError(t, w.UnmountHung(t.Context(), w.fuse.Path(), options))
	require.Error(t, <-hung)
	assert.Zero(t, mountsAt(t, w.Mounter, w.fuse.Path()))
}

func TestSyncFS(t *testing.T) {
	mounttest.RequireMounts(t)
	m := mount.New(mount.Options{})
	target := t.TempDir() + "/target"
	mountTmpfs(t, m, target)
	require.NoError(t, m.SyncFS(t.Context(), target))
	require.ErrorIs(t, m.SyncFS(t.Context(), t.TempDir()), mount.ErrNotMounted, "a directory is on another filesystem")
	require.ErrorIs(t, m.SyncFS(t.Context(), target+"/../x"), mount.ErrInvalid)

	w := newFaultWorld(t, mount.Options{})
	w.fuse.Kill()
	require.ErrorIs(t, w.SyncFS(t.Context(), w.fuse.Path()), unix.ENOTCONN)
}
