package mount_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// onlyInterface hides all that a Mounter has beside the methods of [mount.Interface].
type onlyInterface struct{ mount.Interface }

// TestStackIsWhatLiesAtThePath and nothing that lies above or below it in the tree.
func TestStackIsWhatLiesAtThePath(t *testing.T) {
	mounttest.RequireMounts(t)
	kernel := mount.New(mount.Options{})
	for name, m := range map[string]mount.Interface{
		"by unique ids": kernel, "without them": mount.New(mount.Options{Without: mount.FeatureStatmount}), "of another": onlyInterface{kernel},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			at := filepath.Join(dir, "outer", "at")
			tmpfs := func(source, target string) {
				require.NoError(t, kernel.Mount(t.Context(), mount.Request{Source: source, Target: target, FSType: "tmpfs"}))
				t.Cleanup(func() { _ = kernel.Unmount(context.WithoutCancel(t.Context()), target, mount.UnmountOptions{}) })
			}
			sources := func(path string) []string {
				stack, err := mount.Stack(t.Context(), m, path)
				require.NoError(t, err)
				var found []string
				for _, mp := range stack {
					assert.Equal(t, path, mp.Path)
					found = append(found, mp.Source)
				}
				return found
			}
			assert.Empty(t, sources(at), "it does not exist")
			tmpfs("outer", filepath.Dir(at))
			assert.Empty(t, sources(at))
			tmpfs("first", at)
			tmpfs("second", at)
			tmpfs("third", at)
			tmpfs("inner", filepath.Join(at, "inner"))
			assert.Equal(t, []string{"third", "second", "first"}, sources(at))
			assert.Equal(t, []string{"outer"}, sources(filepath.Dir(at)))
		})
	}
}

// reads returns how many bytes this process has read so far, from files of the kernel too.
func reads(t *testing.T) (n int) {
	t.Helper()
	content, err := os.ReadFile("/proc/self/io")
	require.NoError(t, err)
	_, err = fmt.Sscanf(string(content), "rchar: %d", &n)
	require.NoError(t, err)
	return n
}

// TestWhatIsNotMountedIsFoundOutWithoutTheTable, also when the kernel has the missing name in memory, as it has one that was removed.
func TestWhatIsNotMountedIsFoundOutWithoutTheTable(t *testing.T) {
	mounttest.RequireMounts(t)
	m, dir := mount.New(mount.Options{}), t.TempDir()
	const others = 100
	for i := range others {
		target := filepath.Join(dir, fmt.Sprint("other-", i))
		require.NoError(t, m.Mount(t.Context(), mount.Request{Source: "other", Target: target, FSType: "tmpfs"}))
		t.Cleanup(func() { _ = mount.UnmountPath(context.WithoutCancel(t.Context()), m, target, mount.UnmountOptions{}) })
	}
	plain := filepath.Join(dir, "plain")
	before := reads(t)
	for range 3 {
		for _, missing := range []string{filepath.Join(dir, "missing"), filepath.Join(dir, "missing", "deep", "below"), filepath.Join(plain, "missing")} {
			_, err := m.Lookup(t.Context(), missing)
			require.ErrorIs(t, err, mount.ErrNotMounted)
			_, err = m.IsMountPoint(t.Context(), missing)
			require.ErrorIs(t, err, os.ErrNotExist)
			require.ErrorIs(t, m.Unmount(t.Context(), missing, mount.UnmountOptions{}), mount.ErrNotMounted)
			require.NoError(t, mount.UnmountPath(t.Context(), m, missing, mount.UnmountOptions{}))
			stack, err := mount.Stack(t.Context(), m, missing)
			require.NoError(t, err)
			assert.Empty(t, stack)
		}
		require.NoError(t, os.Mkdir(plain, 0o700))
		require.ErrorIs(t, m.Unmount(t.Context(), plain, mount.UnmountOptions{}), mount.ErrNotMounted)
		require.NoError(t, m.RemoveTarget(t.Context(), plain))
	}
	assert.Less(t, reads(t)-before, others*50, "a mount table has more")
}
