package mount_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

// TestFailedMountTakesNoParentFromAnother lets a mount that fails and one that works need the same parents.
func TestFailedMountTakesNoParentFromAnother(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		root := t.TempDir()
		parent := filepath.Join(root, "a", "b")
		good, bad := filepath.Join(parent, "good"), filepath.Join(parent, "bad")
		for range 25 {
			failed := make(chan error, 1)
			go func() {
				failed <- m.Mount(t.Context(), mount.Request{Target: bad, FSType: "tmpfs", Options: []string{"none"}})
			}()
			err := m.Mount(t.Context(), mount.Request{Target: good, FSType: "tmpfs"})
			require.ErrorIs(t, <-failed, unix.EINVAL)
			require.NoError(t, err)
			require.NoError(t, mount.UnmountPath(t.Context(), m, good, plain))
			require.NoError(t, os.Remove(parent))
			require.NoError(t, os.Remove(filepath.Dir(parent)))
		}
	})
}

// TestBindOfADescriptor binds what is open, whatever its path has become.
func TestBindOfADescriptor(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		root := t.TempDir()
		source, target := filepath.Join(root, "source"), filepath.Join(root, "target")
		require.NoError(t, os.WriteFile(source, []byte("content"), 0o600))
		file, err := os.Open(source)
		require.NoError(t, err)
		defer file.Close()
		require.NoError(t, os.Rename(source, filepath.Join(root, "renamed")))
		require.NoError(t, os.Symlink("/etc/passwd", source))
		path := "/proc/self/fd/" + strconv.Itoa(int(file.Fd()))
		require.NoError(t, m.Mount(t.Context(), mount.Request{Source: path, Target: target, Options: []string{"bind"}}))
		content, err := os.ReadFile(target)
		require.NoError(t, err)
		assert.Equal(t, "content", string(content))
		require.NoError(t, mount.UnmountPath(t.Context(), m, target, plain))
	})
}

// TestMountBelowASharedOneComesAndGoesWithItsCopy plays an agent in a container and its host.
func TestMountBelowASharedOneComesAndGoesWithItsCopy(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		host, agent := filepath.Join(t.TempDir(), "host"), filepath.Join(t.TempDir(), "agent")
		mountTmpfs(t, m, host)
		require.NoError(t, unix.Mount("", host, "", unix.MS_SHARED, ""))
		options := []string{"bind", "shared"}
		require.NoError(t, m.Mount(t.Context(), mount.Request{Source: host, Target: agent, Options: options}))
		require.NoError(t, m.Mount(t.Context(), mount.Request{Target: filepath.Join(agent, "target"), FSType: "tmpfs"}))
		assert.True(t, isMounted(t, m, filepath.Join(host, "target")))
		require.NoError(t, m.Unmount(t.Context(), filepath.Join(agent, "target"), plain))
		assert.False(t, isMounted(t, m, filepath.Join(host, "target")))
		require.NoError(t, mount.UnmountPath(t.Context(), m, agent, plain))
		require.NoError(t, mount.UnmountPath(t.Context(), m, host, plain))
	})
}

func TestParentThatIsALinkIsNotMadeThrough(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		victim, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
		require.NoError(t, os.Symlink(victim, link))
		err := m.Mount(t.Context(), mount.Request{Target: filepath.Join(link, "a", "b"), FSType: "tmpfs"})
		require.ErrorIs(t, err, unix.ELOOP)
		dangling := filepath.Join(t.TempDir(), "dangling")
		require.NoError(t, os.Symlink(filepath.Join(victim, "none"), dangling))
		err = m.Mount(t.Context(), mount.Request{Target: filepath.Join(dangling, "a"), FSType: "tmpfs"})
		require.ErrorIs(t, err, unix.ELOOP)
		made, err := os.ReadDir(victim)
		require.NoError(t, err)
		assert.Empty(t, made)
	})
}
