package loop_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// sizeOf is how much can be read of a device.
func sizeOf(t *testing.T, device loop.Device) int64 {
	t.Helper()
	file, err := os.Open(device.Path)
	require.NoError(t, err)
	defer file.Close()
	size, err := file.Seek(0, 2)
	require.NoError(t, err)
	return size
}

func TestResize(t *testing.T) {
	mounttest.RequireRoot(t)
	path := backing(t)
	_, err := loops.Resize(t.Context(), path)
	require.ErrorIs(t, err, loop.ErrNotAttached)
	device := attach(t, path, loop.AttachOptions{})
	same, err := loops.Resize(t.Context(), path)
	require.NoError(t, err, "it has that size")
	assert.Equal(t, device, same)

	require.NoError(t, os.Truncate(path, 16<<20+511))
	assert.Equal(t, int64(8<<20), sizeOf(t, device), "the kernel does not look by itself")
	resized, err := loops.Resize(t.Context(), path)
	require.NoError(t, err)
	assert.Equal(t, device, resized)
	assert.Equal(t, int64(16<<20), sizeOf(t, device), "whole sectors")
	_, err = loops.Resize(t.Context(), path)
	require.NoError(t, err, "a second time")

	require.NoError(t, os.Truncate(path, 4<<20))
	_, err = loops.Resize(t.Context(), path)
	require.ErrorIs(t, err, loop.ErrShrink)
	assert.Equal(t, int64(16<<20), sizeOf(t, device))
	require.NoError(t, loops.Detach(t.Context(), device))
	_, err = loops.Resize(t.Context(), filepath.Join(t.TempDir(), "missing"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestResizeOfAPart(t *testing.T) {
	mounttest.RequireRoot(t)
	path := backing(t)
	options := loop.AttachOptions{Offset: 4096, SizeLimit: 12 << 20}
	device := attach(t, path, options)
	assert.Equal(t, int64(8<<20-4096), sizeOf(t, device))
	require.NoError(t, os.Truncate(path, 64<<20))
	_, err := loops.Resize(t.Context(), path)
	require.NoError(t, err)
	assert.Equal(t, int64(12<<20), sizeOf(t, device))

	assert.Equal(t, device, attach(t, path, options))
	_, err = loops.Attach(t.Context(), path, loop.AttachOptions{})
	require.ErrorIs(t, err, loop.ErrInUse, "one file, one device, also by parts")
	_, err = loops.Attach(t.Context(), path, loop.AttachOptions{Offset: 8192, SizeLimit: 12 << 20})
	require.ErrorIs(t, err, loop.ErrInUse)
	require.NoError(t, loops.Detach(t.Context(), device))
}

func TestHoldDevice(t *testing.T) {
	mounttest.RequireRoot(t)
	device := attach(t, backing(t), loop.AttachOptions{})
	node, err := os.Open(device.Path)
	require.NoError(t, err)
	defer node.Close()
	lock, err := loops.HoldDevice(t.Context(), node, "a lock")
	require.NoError(t, err)
	assert.True(t, lock.ReadOnly)
	assert.NotZero(t, lock.BackingRdev)
	again, err := loops.HoldDevice(t.Context(), node, "a lock")
	require.NoError(t, err)
	assert.Equal(t, lock.Number, again.Number)
	other, err := loops.HoldDevice(t.Context(), node, "another lock")
	require.NoError(t, err)
	assert.NotEqual(t, lock.Number, other.Number)

	require.NoError(t, node.Close())
	require.ErrorIs(t, loops.Detach(t.Context(), device), loop.ErrInUse, "it is held")
	require.NoError(t, loops.Detach(t.Context(), lock))
	require.NoError(t, loops.Detach(t.Context(), other))
	require.NoError(t, loops.Detach(t.Context(), device))

	file, err := os.Open(backing(t))
	require.NoError(t, err)
	defer file.Close()
	_, err = loops.HoldDevice(t.Context(), file, "a lock")
	require.ErrorIs(t, err, os.ErrInvalid, "not a device")
}
