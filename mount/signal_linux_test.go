package mount_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// TestInterruptedLookupIsRepeated lets a filesystem answer EINTR, as the server of a FUSE filesystem does when a thread of
// the Go runtime gets one of its signals.
func TestInterruptedLookupIsRepeated(t *testing.T) {
	for name, without := range variants {
		t.Run(name, func(t *testing.T) { interruptedMount(t, mount.New(mount.Options{Without: without})) })
	}
}

func interruptedMount(t *testing.T, m *mount.Mounter) {
	t.Helper()
	f := newFUSE(t)
	f.Hang(mounttest.FUSELookup)
	request := mount.Request{
		Source: filepath.Join(f.Path(), "dir"), Target: filepath.Join(t.TempDir(), "target"), Options: []string{"bind"},
	}
	result := make(chan error, 1)
	go func() { result <- m.Mount(t.Context(), request) }()
	for range 3 {
		f.Await(mounttest.FUSELookup)
		f.Answer(unix.EINTR)
	}
	f.Await(mounttest.FUSELookup)
	f.Answer(unix.EACCES)
	require.ErrorIs(t, <-result, unix.EACCES)
	require.NoError(t, m.Unmount(t.Context(), f.Path(), mount.UnmountOptions{Force: time.Minute}))
}
