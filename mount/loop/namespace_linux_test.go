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
	requireFormat(t, "ext4")
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
	assert.Equal(t, device, found, "the device is found: the file is not attached once more")
	opened, err := loops.DeviceOpened(t.Context(), device.Path)
	require.NoError(t, err)
	assert.True(t, opened)
	mounted, err := loops.AwaitReleased(t.Context(), device.Path)
	require.NoError(t, err)
	assert.True(t, mounted)

	require.NoError(t, stdin.Close())
	require.NoError(t, child.Wait())
	require.NoError(t, loops.Detach(t.Context(), device))
	assert.Empty(t, devicesIn(t, filepath.Dir(path)))
}

func requireFormat(t *testing.T, fsType string) {
	t.Helper()
	if err := format.CanMake(fsType); err != nil {
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
	requireDetached(t, gone)
}

// TestDetachWhileTheFilesystemOfItsFileIsDead: the kernel cannot report the file of a device that a process still reads. That is
// no proof that the device has none.
func TestDetachWhileTheFilesystemOfItsFileIsDead(t *testing.T) {
	mounttest.RequireRoot(t)
	requireFormat(t, "xfs")
	disk := backing(t)
	require.NoError(t, os.Truncate(disk, 512<<20))
	require.NoError(t, format.Make(t.Context(), disk, format.MakeOptions{FSType: "xfs"}))
	below := attach(t, disk, loop.AttachOptions{})
	dir := t.TempDir()
	require.NoError(t, unix.Mount(below.Path, dir, "xfs", 0, ""))
	path := filepath.Join(dir, "disk.img")
	require.NoError(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	device := attach(t, path, loop.AttachOptions{})
	reader, err := os.Open(device.Path)
	require.NoError(t, err)
	shutDown(t, dir)

	err = loops.Detach(t.Context(), device)
	require.ErrorIs(t, err, loop.ErrInUse, "it goes with the last close")
	require.ErrorIs(t, err, mount.ErrUncertain)
	require.NoError(t, reader.Close())
	require.NoError(t, loops.Detach(t.Context(), device))
	require.NoError(t, unix.Unmount(dir, unix.UMOUNT_NOFOLLOW), "nothing holds the filesystem any more")
	require.NoError(t, loops.Detach(t.Context(), below))
}

// shutDown lets every call on the xfs at dir fail from now on.
func shutDown(t *testing.T, dir string) {
	t.Helper()
	const goingDown, noLogFlush = 0x8004587d, 2
	root, err := os.Open(dir)
	require.NoError(t, err)
	defer root.Close()
	require.NoError(t, unix.IoctlSetPointerInt(int(root.Fd()), goingDown, noLogFlush))
}
