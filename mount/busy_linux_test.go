package mount_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

// ownProgram leads to the program of these tests wherever that lies: an ordinary user may have no way to its path.
const ownProgram = "/proc/self/exe"

// startWaiting starts a process that does nothing, in the directory and with the flags of clone(2), and ends it with the
// test or when stop is called.
func startWaiting(t *testing.T, dir string, flags uintptr) (pid int, stop func()) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "mount.wait")
	require.NoError(t, os.Symlink(ownProgram, program))
	cmd := exec.CommandContext(t.Context(), program, "", "")
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	require.NoError(t, cmd.Start())
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}
	t.Cleanup(stop)
	return cmd.Process.Pid, stop
}

func TestUnmountIsBusyByAWorkingDirectory(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		target := filepath.Join(t.TempDir(), "target")
		mountTmpfs(t, m, target)
		options := mount.UnmountOptions{Expect: lineOf(t, m, target).Identity()}
		_, stop := startWaiting(t, target, 0)
		require.ErrorIs(t, m.Unmount(t.Context(), target, plain), unix.EBUSY)
		require.ErrorIs(t, m.Unmount(t.Context(), target, options), unix.EBUSY)
		require.ErrorIs(t, m.RemoveTarget(t.Context(), target), unix.EBUSY)
		assert.True(t, isMounted(t, m, target))
		stop()
		require.NoError(t, mount.UnmountPath(t.Context(), m, target, options))
	})
}

// TestMountInAnotherNamespaceIsNotOurs shows what Unmount and RemoveTarget cannot see: a copy in another mount namespace
// lives on, keeps the filesystem busy, and goes with the directory.
func TestMountInAnotherNamespaceIsNotOurs(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		target := filepath.Join(t.TempDir(), "target")
		mountTmpfs(t, m, target)
		require.NoError(t, os.WriteFile(filepath.Join(target, "file"), []byte("content"), 0o600))
		pid, _ := startWaiting(t, "/", unix.CLONE_NEWNS)
		there := filepath.Join("/proc", strconv.Itoa(pid), "root", target, "file")

		require.NoError(t, m.Unmount(t.Context(), target, plain))
		assert.False(t, isMounted(t, m, target))
		content, err := os.ReadFile(there)
		require.NoError(t, err, "the filesystem is still in use")
		assert.Equal(t, "content", string(content))

		require.NoError(t, m.RemoveTarget(t.Context(), target))
		_, err = os.Lstat(there)
		require.ErrorIs(t, err, os.ErrNotExist, "the copy has gone with the directory")
	})
}

func TestPropagationOfARemountIsThatOfTheMount(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		target := filepath.Join(t.TempDir(), "target")
		mountTmpfs(t, m, target)
		mountTmpfs(t, m, filepath.Join(target, "below"))
		change := func(options ...string) {
			t.Helper()
			require.NoError(t, m.Mount(t.Context(), mount.Request{Target: target, Options: append(options, "remount")}))
		}
		shared := func(path string) bool { return len(lineOf(t, m, path).Propagation) > 0 }
		change("shared")
		assert.True(t, shared(target))
		assert.False(t, shared(filepath.Join(target, "below")))
		change("rshared")
		assert.True(t, shared(filepath.Join(target, "below")))
		change("private", "nosuid")
		assert.False(t, shared(target))
		assert.Contains(t, lineOf(t, m, target).Options, "nosuid")
		assert.NotContains(t, lineOf(t, m, filepath.Join(target, "below")).Options, "nosuid")
		change("rprivate")
		assert.False(t, shared(filepath.Join(target, "below")))
		require.NoError(t, m.Unmount(t.Context(), filepath.Join(target, "below"), plain))
		require.NoError(t, m.Unmount(t.Context(), target, plain))
	})
}
