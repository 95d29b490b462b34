package format_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// sizes are a size of each filesystem that can grow, and the size that it grows to.
func sizes() map[string][2]int64 {
	return map[string][2]int64{
		"ext2": {16 * mib, 96 * mib}, "ext3": {32 * mib, 96 * mib}, "ext4": {32 * mib, 300 * mib},
		"xfs": {320 * mib, 640 * mib}, "btrfs": {160 * mib, 320 * mib},
	}
}

// growing is an image with a filesystem, attached to a device.
type growing struct {
	t      *testing.T
	loops  *loop.Manager
	image  string
	device loop.Device
	dir    string
}

func newGrowing(t *testing.T, fsType string, size int64) *growing {
	mounttest.RequireRoot(t)
	g := &growing{t: t, loops: loop.New(loop.Options{}), image: formatted(t, fsType, size), dir: t.TempDir()}
	var err error
	g.device, err = g.loops.Attach(t.Context(), g.image, loop.AttachOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = unix.Unmount(g.dir, 0) // which it may be already
		assert.NoError(t, g.loops.Detach(context.WithoutCancel(t.Context()), g.device))
	})
	return g
}

func (g *growing) mount(fsType string) {
	require.NoError(g.t, unix.Mount(g.device.Path, g.dir, fsType, unix.MS_NOSUID|unix.MS_NODEV, ""))
}

func (g *growing) enlarge(size int64) {
	require.NoError(g.t, os.Truncate(g.image, size))
	_, err := g.loops.Resize(g.t.Context(), g.image)
	require.NoError(g.t, err)
}

func (g *growing) grow(path string) (format.GrowResult, error) {
	return format.Grow(g.t.Context(), g.device.Path, format.GrowOptions{MountPath: path})
}

// space is what statfs says that the filesystem has.
func (g *growing) space() int64 {
	var st unix.Statfs_t
	require.NoError(g.t, unix.Statfs(g.dir, &st))
	return int64(st.Blocks) * st.Bsize
}

// mayResize reports whether this process has what ext4 asks for to grow while it is mounted, which root of a container
// may lack.
func mayResize(t *testing.T) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	require.NoError(t, unix.Capget(&header, &data[0]))
	return data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

func TestGrowMounted(t *testing.T) {
	for fsType, size := range sizes() {
		t.Run(fsType, func(t *testing.T) {
			g := newGrowing(t, fsType, size[0])
			g.mount(fsType)
			kept := filepath.Join(g.dir, "kept")
			require.NoError(t, os.WriteFile(kept, []byte("content"), 0o600))
			result, err := g.grow(g.dir)
			require.NoError(t, err)
			assert.False(t, result.Grown(), "there is nothing to do")
			before := g.space()

			g.enlarge(size[1])
			result, err = g.grow(g.dir)
			if fsType[:3] == "ext" && !mayResize(t) {
				require.ErrorIs(t, err, unix.EPERM)
				require.ErrorContains(t, err, "CAP_SYS_RESOURCE", "what is missing")
				assert.Equal(t, before, g.space())
				return
			}
			if fsType == "ext2" && err != nil {
				require.ErrorIs(t, err, mount.ErrUnsupported, "the driver is that of ext4, or cannot")
				return
			}
			require.NoError(t, err)
			assert.True(t, result.Grown())
			assert.InDelta(t, size[1], result.After, float64(mib))
			assert.Greater(t, g.space(), before+(size[1]-size[0])*8/10)
			content, err := os.ReadFile(kept)
			require.NoError(t, err)
			assert.Equal(t, "content", string(content))

			result, err = g.grow(g.dir)
			require.NoError(t, err, "a second time")
			assert.False(t, result.Grown())
			require.NoError(t, unix.Unmount(g.dir, 0))
			checked, err := format.Check(t.Context(), g.device.Path, fsType)
			require.NoError(t, err)
			assert.False(t, checked.Repaired)
			g.mount(fsType)
			assert.FileExists(t, kept)
		})
	}
}

func TestGrowUnmounted(t *testing.T) {
	for _, fsType := range []string{"ext2", "ext3", "ext4"} {
		t.Run(fsType, func(t *testing.T) {
			size := sizes()[fsType]
			path := formatted(t, fsType, size[0])
			require.NoError(t, os.Truncate(path, size[1]))
			result, err := format.Grow(t.Context(), path, format.GrowOptions{})
			require.NoError(t, err)
			assert.Equal(t, format.GrowResult{Before: size[0], After: size[1]}, result)
			result, err = format.Grow(t.Context(), path, format.GrowOptions{})
			require.NoError(t, err, "a second time")
			assert.False(t, result.Grown())
			checked, err := format.Check(t.Context(), path, fsType)
			require.NoError(t, err)
			assert.False(t, checked.Repaired)
		})
	}
}

// Without reserved blocks the table of the groups has no room to grow.
func TestGrowMovesNoBlocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, 8*mib))
	out, err := exec.CommandContext(t.Context(), "mkfs.ext4", "-q", "-O", "^resize_inode", path).CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, os.Truncate(path, 16*mib))
	_, err = format.Grow(t.Context(), path, format.GrowOptions{})
	require.NoError(t, err, "there is room in the first block of the table")
	require.NoError(t, os.Truncate(path, 640*mib))
	_, err = format.Grow(t.Context(), path, format.GrowOptions{})
	require.ErrorIs(t, err, mount.ErrUnsupported)
}

func TestGrowLeavesPartOfABlockAlone(t *testing.T) {
	path := formatted(t, "ext4", 32*mib)
	require.NoError(t, os.Truncate(path, 32*mib+512))
	result, err := format.Grow(t.Context(), path, format.GrowOptions{})
	require.NoError(t, err)
	assert.False(t, result.Grown())
}

func TestGrowNeedsAMountOfXFSAndBtrfs(t *testing.T) {
	for _, fsType := range []string{"xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			size := sizes()[fsType]
			path := formatted(t, fsType, size[0])
			_, err := format.Grow(t.Context(), path, format.GrowOptions{})
			require.NoError(t, err, "there is nothing to do")
			require.NoError(t, os.Truncate(path, size[1]))
			_, err = format.Grow(t.Context(), path, format.GrowOptions{})
			require.ErrorIs(t, err, mount.ErrNotMounted)
		})
	}
}

func TestGrowNeverShrinks(t *testing.T) {
	for fsType, size := range sizes() {
		t.Run(fsType, func(t *testing.T) {
			path := formatted(t, fsType, size[0])
			require.NoError(t, os.Truncate(path, size[0]-8*mib))
			before := sum(t, path)
			_, err := format.Grow(t.Context(), path, format.GrowOptions{})
			require.ErrorIs(t, err, format.ErrShrink)
			assert.Equal(t, before, sum(t, path))
		})
	}
}

func TestGrowOfAMountedDeviceAsIfItWereNot(t *testing.T) {
	g := newGrowing(t, "ext4", 32*mib)
	g.mount("ext4")
	g.enlarge(64 * mib)
	_, err := g.grow("")
	require.ErrorIs(t, err, format.ErrInUse)
	require.ErrorIs(t, err, unix.EBUSY)
	assert.Less(t, g.space(), int64(40*mib))
}

func TestGrowOfAnotherMountIsRefused(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		size := sizes()[fsType]
		t.Run(fsType, func(t *testing.T) {
			g, other := newGrowing(t, fsType, size[0]), newGrowing(t, fsType, size[0])
			other.mount(fsType)
			before := other.space()
			g.enlarge(size[1])
			other.enlarge(size[1])
			_, err := g.grow(other.dir)
			require.ErrorIs(t, err, mount.ErrForeign, "another device")
			_, err = g.grow(g.dir)
			require.ErrorIs(t, err, mount.ErrForeign, "no mount at all")
			_, err = format.Grow(t.Context(), g.image, format.GrowOptions{MountPath: other.dir})
			require.ErrorIs(t, err, mount.ErrForeign, "an image is mounted nowhere")
			assert.Equal(t, before, other.space())
		})
	}
}

func TestGrowRefusesALinkInPlaceOfTheMount(t *testing.T) {
	g := newGrowing(t, "ext4", 32*mib)
	g.mount("ext4")
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(g.dir, link))
	_, err := g.grow(link)
	require.ErrorIs(t, err, unix.ENOTDIR)
}

func TestGrowOfAReadOnlyMountFails(t *testing.T) {
	g := newGrowing(t, "ext4", 32*mib)
	require.NoError(t, unix.Mount(g.device.Path, g.dir, "ext4", unix.MS_RDONLY, ""))
	g.enlarge(64 * mib)
	_, err := g.grow(g.dir)
	if mayResize(t) {
		require.ErrorIs(t, err, unix.EROFS)
	}
	require.Error(t, err)
}

func TestGrowOfNothing(t *testing.T) {
	_, err := format.Grow(t.Context(), image(t, 8*mib), format.GrowOptions{})
	require.ErrorIs(t, err, format.ErrUnknownType)
}
