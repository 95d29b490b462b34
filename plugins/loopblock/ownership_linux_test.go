package loopblock_test

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// lstat returns group and mode, file type included.
func lstat(t *testing.T, path string) (gid int, mode uint32) {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Lstat(path, &st))
	return int(st.Gid), st.Mode
}

func TestFsGroup(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	staging := n.stage(spec)
	outside := filepath.Join(n.root, "outside")
	write(t, outside, "of the host")
	require.NoError(t, os.MkdirAll(filepath.Join(staging, "a/b"), 0o700))
	write(t, filepath.Join(staging, "a/b/file"), "x")
	require.NoError(t, os.Chmod(filepath.Join(staging, "a/b/file"), 0o400))
	require.NoError(t, os.Symlink(outside, filepath.Join(staging, "link")))
	require.NoError(t, unix.Mkfifo(filepath.Join(staging, "fifo"), 0o600))

	gid := int64(4321)
	mounter := n.mounterOf(spec, "pod")
	require.NoError(t, mounter.SetUp(t.Context(), volume.MounterArgs{FsGroup: &gid}))
	n.cleanMount(mounter.GetPath())
	for name, want := range map[string]uint32{
		"": unix.S_IFDIR | 0o2775, "a": unix.S_IFDIR | 0o2770, "a/b": unix.S_IFDIR | 0o2770,
		"a/b/file": unix.S_IFREG | 0o660, "fifo": unix.S_IFIFO | 0o660, "link": unix.S_IFLNK | 0o777,
	} {
		got, mode := lstat(t, filepath.Join(mounter.GetPath(), name))
		assert.Equal(t, int(gid), got, "group of %q", name)
		assert.Equalf(t, want, mode, "mode of %q is %o", name, mode)
	}
	got, mode := lstat(t, outside)
	assert.Zero(t, got, "what a link leads to is left alone")
	assert.Equal(t, uint32(unix.S_IFREG|0o644), mode)
	n.tearDown(spec, "pod")
	n.release(spec)
}

func TestFsGroupOnRootMismatch(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	staging := n.stage(spec)
	gid, policy := int64(77), v1.FSGroupChangeOnRootMismatch
	args := volume.MounterArgs{FsGroup: &gid, FSGroupChangePolicy: &policy}
	mounter := n.mounterOf(spec, "pod")
	n.cleanMount(mounter.GetPath())
	require.NoError(t, mounter.SetUp(t.Context(), args))
	write(t, filepath.Join(staging, "later"), "x")
	require.NoError(t, os.Chown(filepath.Join(staging, "later"), 0, 0))
	require.NoError(t, mounter.SetUp(t.Context(), args))
	got, _ := lstat(t, filepath.Join(staging, "later"))
	assert.Zero(t, got, "the root is right, so that nothing is walked")

	args.FSGroupChangePolicy = nil
	require.NoError(t, mounter.SetUp(t.Context(), args))
	got, _ = lstat(t, filepath.Join(staging, "later"))
	assert.Equal(t, 77, got)
	n.tearDown(spec, "pod")
	n.release(spec)
}

func TestFsGroupLeavesOtherFilesystemsAlone(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	inner := filepath.Join(n.stage(spec), "inner")
	require.NoError(t, os.Mkdir(inner, 0o755))
	require.NoError(t, unix.Mount("tmpfs", inner, "tmpfs", 0, ""))
	n.cleanMount(inner)
	write(t, filepath.Join(inner, "file"), "of another filesystem")
	gid := int64(77)
	require.NoError(t, n.mounterOf(spec, "pod").SetUp(t.Context(), volume.MounterArgs{FsGroup: &gid}))
	for _, path := range []string{inner, filepath.Join(inner, "file")} {
		got, _ := lstat(t, path)
		assert.Zero(t, got, path)
	}
	require.NoError(t, unix.Unmount(inner, 0))
	n.tearDown(spec, "pod")
	n.release(spec)
}

func TestFsGroupFailsBeforeTheBind(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	staging := n.stage(spec)
	require.NoError(t, os.Mkdir(filepath.Join(staging, "a"), 0o755))
	write(t, filepath.Join(staging, "frozen"), "x")
	chattr(t, filepath.Join(staging, "frozen"), immutable)
	defer chattr(t, filepath.Join(staging, "frozen"), 0)
	gid := int64(77)
	mounter := n.mounterOf(spec, "pod")
	err := mounter.SetUp(t.Context(), volume.MounterArgs{FsGroup: &gid})
	require.ErrorIs(t, err, unix.EPERM)
	assert.Empty(t, n.mountsAt(mounter.GetPath()))
	rootGID, _ := lstat(t, staging)
	assert.NotEqual(t, 77, rootGID, "the root comes last")
}

// immutable is FS_IMMUTABLE_FL of linux/fs.h.
const immutable = 0x10

func chattr(t *testing.T, path string, flags int) {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, unix.IoctlSetPointerInt(int(file.Fd()), unix.FS_IOC_SETFLAGS, flags))
}

func TestFsGroupLeavesReadOnlyAndRefreshesAlone(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	staging := n.stage(spec)
	gid := int64(77)
	readOnly := n.mounterOf(volume.NewSpecFromPersistentVolume(spec.PersistentVolume, true), "reader")
	n.cleanMount(readOnly.GetPath())
	require.NoError(t, readOnly.SetUp(t.Context(), volume.MounterArgs{FsGroup: &gid}))
	writer := n.mounterOf(spec, "writer")
	n.cleanMount(writer.GetPath())
	require.NoError(t, writer.SetUp(t.Context(), volume.MounterArgs{FsGroup: &gid, IsRemount: true}))
	got, _ := lstat(t, staging)
	assert.Zero(t, got)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, writer.SetUp(ended, volume.MounterArgs{FsGroup: &gid}))
}

func TestFsGroupMustBeAGroup(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	staging := n.stage(spec)
	write(t, filepath.Join(staging, "file"), "x")
	mounter := n.mounterOf(spec, "pod")
	n.cleanMount(mounter.GetPath())
	// The last two are "no change" and group 0 to a system call that takes 32 bits.
	for _, gid := range []int64{-1, math.MinInt64, math.MaxUint32, math.MaxUint32 + 1} {
		require.ErrorIs(t, mounter.SetUp(t.Context(), volume.MounterArgs{FsGroup: &gid}), volume.ErrInvalid, gid)
	}
	assert.Empty(t, n.mountsAt(mounter.GetPath()))
	_, mode := lstat(t, filepath.Join(staging, "file"))
	assert.Equal(t, uint32(unix.S_IFREG|0o644), mode)
}
