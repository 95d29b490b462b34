package loop_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
)

func mountHere(device, dir string) error {
	return unix.Mount(device, dir, "ext4", unix.MS_NOSUID|unix.MS_NODEV, "")
}

// TestDetachWhileAnotherNamespaceHasItMounted is the case in which losetup -d returns 0 and the device stays.
func TestDetachWhileAnotherNamespaceHasItMounted(t *testing.T) {
	mounttest.RequireRoot(t)
	requireExt4(t)
	path := backing(t)
	require.NoError(t, format.Make(t.Context(), path, format.MakeOptions{FSType: "ext4"}))
	device := attach(t, path, loop.AttachOptions{})
	dir := t.TempDir()
	child := exec.CommandContext(t.Context(), "/proc/self/exe")
	child.Env = append(os.Environ(), childMount+"="+device.Path, "TMPDIR="+dir)
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	child.Stderr = os.Stderr
	stdin, err := child.StdinPipe()
	require.NoError(t, err)
	stdout, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "mounted\n", line)

	err = loops.Detach(t.Context(), device)
	var inUse *loop.InUseError
	require.ErrorAs(t, err, &inUse)
	require.ErrorIs(t, err, loop.ErrInUse)
	require.NotErrorIs(t, err, mount.ErrUncertain, "nothing was changed")
	require.NotEmpty(t, inUse.Holders)
	assert.Equal(t, loop.Holder{PID: child.Process.Pid, MountPath: dir}, inUse.Holders[0])
	found, err := loops.Find(t.Context(), path)
	require.NoError(t, err)
	assert.Equal(t, device, found, "it is as it was, so that nobody attaches the file once more")
	opened, err := loops.DeviceOpened(t.Context(), device.Path)
	require.NoError(t, err)
	assert.True(t, opened)

	require.NoError(t, stdin.Close())
	require.NoError(t, child.Wait())
	require.NoError(t, loops.Detach(t.Context(), device))
	assert.Empty(t, devicesIn(t, filepath.Dir(path)))
}

func requireExt4(t *testing.T) {
	t.Helper()
	if err := format.CanMake("ext4"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("missing, and under CI nothing is skipped: %v", err)
		}
		t.Skipf("missing: %v", err)
	}
}

func TestDetachOfATruncatedAndDeletedFile(t *testing.T) {
	mounttest.RequireRoot(t)
	path := backing(t)
	device := attach(t, path, loop.AttachOptions{})
	require.NoError(t, os.Truncate(path, 0))
	require.NoError(t, os.Remove(path))
	gone, err := loops.Inspect(t.Context(), device.Path)
	require.NoError(t, err)
	assert.True(t, gone.Deleted)
	assert.Equal(t, path, gone.BackingPath)
	require.NoError(t, loops.Detach(t.Context(), gone))
	_, err = loops.Inspect(t.Context(), device.Path)
	require.ErrorIs(t, err, loop.ErrNotAttached)
}
