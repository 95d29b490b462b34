package mount_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

func TestARootIsThatOfTheMountThatWasLookedUp(t *testing.T) {
	mounttest.RequireMounts(t)
	kernel := mount.New(mount.Options{})
	at := filepath.Join(t.TempDir(), "at")
	tmpfs := func() (*os.File, mount.MountPoint) {
		require.NoError(t, kernel.Mount(t.Context(), mount.Request{Source: "none", Target: at, FSType: "tmpfs"}))
		t.Cleanup(func() { _ = kernel.Unmount(context.WithoutCancel(t.Context()), at, mount.UnmountOptions{}) })
		root, err := os.Open(at)
		require.NoError(t, err)
		t.Cleanup(func() { root.Close() })
		found, err := kernel.Lookup(t.Context(), at)
		require.NoError(t, err)
		return root, found
	}
	lower, lowerMount := tmpfs()
	require.NoError(t, os.Mkdir(filepath.Join(at, "below"), 0o755))
	below, err := os.Open(filepath.Join(at, "below"))
	require.NoError(t, err)
	t.Cleanup(func() { below.Close() })
	upper, upperMount := tmpfs()
	for name, without := range map[string]func(mount.MountPoint) mount.MountPoint{
		"by unique id": func(m mount.MountPoint) mount.MountPoint { return m },
		"by its other": func(m mount.MountPoint) mount.MountPoint { m.UniqueID = 0; return m },
	} {
		t.Run(name, func(t *testing.T) {
			is := func(m mount.MountPoint, dir *os.File) bool {
				is, err := without(m).IsRoot(dir)
				require.NoError(t, err)
				return is
			}
			assert.True(t, is(lowerMount, lower))
			assert.True(t, is(upperMount, upper))
			assert.False(t, is(lowerMount, upper), "another mount at the same path")
			assert.False(t, is(upperMount, lower))
			assert.False(t, is(lowerMount, below), "a directory in the mount")
		})
	}
}
