package mount_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// mountedImage makes a filesystem in a file and mounts it. The loop device goes with its last user.
func mountedImage(t *testing.T, fsType string, options ...string) (found mount.MountPoint, m *mount.Mounter) {
	t.Helper()
	mounttest.RequireRoot(t)
	mkfs, err := exec.LookPath("mkfs." + fsType)
	if err != nil {
		t.Skip("missing: mkfs." + fsType)
	}
	image, target := filepath.Join(t.TempDir(), "image"), filepath.Join(t.TempDir(), "target")
	require.NoError(t, os.WriteFile(image, nil, 0o600))
	require.NoError(t, os.Truncate(image, 320<<20))
	out, err := exec.CommandContext(t.Context(), mkfs, append(append([]string{"-q"}, options...), image)...).CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, os.Mkdir(target, 0o700))
	out, err = exec.CommandContext(t.Context(), "mount", "-o", "loop", image, target).CombinedOutput()
	require.NoError(t, err, string(out))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(target, 0)) })
	m = mount.New(mount.Options{})
	found, err = m.Lookup(t.Context(), target)
	require.NoError(t, err)
	return found, m
}

func TestAnExtTellsOfItsErrorsAndComplaints(t *testing.T) {
	found, m := mountedImage(t, "ext4", "-e", "continue")
	before, err := m.Report(t.Context(), found)
	require.NoError(t, err)
	assert.Zero(t, before.Errors)
	assert.Empty(t, before.LastError)
	device, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", found.Major, found.Minor))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join("/sys/fs/ext4", filepath.Base(device), "trigger_fs_error"), []byte("a test"), 0))
	var after mount.FilesystemReport
	require.Eventually(t, func() bool { // The kernel counts an error a moment after the write has returned.
		after, err = m.Report(t.Context(), found)
		return err != nil || after.Errors > 0
	}, patience, tick)
	require.NoError(t, err)
	assert.EqualValues(t, 1, after.Errors)
	assert.Contains(t, after.LastError, "trigger_test_error")
	assert.Greater(t, after.Complaints, before.Complaints)
	assert.False(t, after.ShutDown)
}

func TestAnXFSTellsThatItWasShutDown(t *testing.T) {
	found, m := mountedImage(t, "xfs")
	report, err := m.Report(t.Context(), found)
	require.NoError(t, err)
	assert.Equal(t, mount.FilesystemReport{}, report)
	root, err := os.Open(found.Path)
	require.NoError(t, err)
	const shutdown, noLogFlush = 0x8004587d, 2
	require.NoError(t, unix.IoctlSetPointerInt(int(root.Fd()), shutdown, noLogFlush))
	require.NoError(t, root.Close())
	report, err = m.Report(t.Context(), found)
	require.NoError(t, err)
	assert.True(t, report.ShutDown)
}

func TestAFilesystemThatIsWellTellsOfNothing(t *testing.T) {
	for _, fsType := range []string{"btrfs", "xfs"} {
		found, m := mountedImage(t, fsType)
		report, err := m.Report(t.Context(), found)
		require.NoError(t, err, fsType)
		assert.Equal(t, mount.FilesystemReport{}, report, fsType)
	}
}

// TestOnlyTheMountThatIsMeantIsAsked: what is mounted over it is another one.
func TestOnlyTheMountThatIsMeantIsAsked(t *testing.T) {
	found, m := mountedImage(t, "btrfs")
	require.NoError(t, unix.Mount("over", found.Path, "tmpfs", 0, "size=64k"))
	_, err := m.Report(t.Context(), found)
	require.ErrorIs(t, err, mount.ErrNotMounted)
	require.NoError(t, unix.Unmount(found.Path, 0))
}
