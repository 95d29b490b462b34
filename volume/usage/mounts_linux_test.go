package usage

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount/mounttest"
)

func TestMain(m *testing.M) { mounttest.Main(m) }

func mountAt(t *testing.T, source, target, fsType string, flags uintptr) {
	t.Helper()
	require.NoError(t, unix.Mount(source, target, fsType, flags, ""))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(target, 0)) })
}

// TestMeasureLeavesOutOtherFilesystems mounts a directory and a file of another filesystem into the tree. Of the
// directory in which the file is mounted everything else must still count.
func TestMeasureLeavesOutOtherFilesystems(t *testing.T) {
	mounttest.RequireMounts(t)
	root, foreign := t.TempDir(), t.TempDir()
	mountAt(t, "foreign", foreign, "tmpfs", 0)
	write(t, filepath.Join(foreign, "below", "file"), 1<<20)
	for i := range 20 {
		write(t, filepath.Join(root, "files", fmt.Sprint(i)), 4096)
	}
	require.NoError(t, os.Mkdir(filepath.Join(root, "directory"), 0o750))
	bare, err := Measure(t.Context(), root)
	require.NoError(t, err)
	require.Equal(t, expected(t, root), bare)
	hidden := expected(t, filepath.Join(root, "directory"))
	covered := expected(t, filepath.Join(root, "files", "10"))

	mountAt(t, foreign, filepath.Join(root, "directory"), "", unix.MS_BIND)
	mountAt(t, filepath.Join(foreign, "below", "file"), filepath.Join(root, "files", "10"), "", unix.MS_BIND)
	got, err := Measure(t.Context(), root)
	require.NoError(t, err)
	assert.Equal(t, bare.Inodes-hidden.Inodes-covered.Inodes, got.Inodes)
	assert.Equal(t, bare.Bytes-hidden.Bytes-covered.Bytes, got.Bytes)
}

// TestMeasureWhileSomethingIsMounted mounts a filesystem on a directory after it was counted, before it is entered.
func TestMeasureWhileSomethingIsMounted(t *testing.T) {
	mounttest.RequireMounts(t)
	root, foreign := t.TempDir(), t.TempDir()
	mountAt(t, "foreign", foreign, "tmpfs", 0)
	write(t, filepath.Join(foreign, "file"), 1<<20)
	require.NoError(t, os.Mkdir(filepath.Join(root, "directory"), 0o750))
	ctx := &at{Context: t.Context(), do: map[int]func(){2: func() {
		mountAt(t, foreign, filepath.Join(root, "directory"), "", unix.MS_BIND)
	}}}
	got, err := walkTree(ctx, root)
	require.NoError(t, err)
	assert.EqualValues(t, 2, got.Inodes)
}
