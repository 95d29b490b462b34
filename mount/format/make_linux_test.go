package format_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
)

const mib = 1 << 20

// image makes a sparse file.
func image(t *testing.T, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.img")
	file, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, file.Truncate(size))
	require.NoError(t, file.Close())
	return path
}

// formatted makes an image with a filesystem.
func formatted(t *testing.T, fsType string, size int64) string {
	t.Helper()
	requireTool(t, fsType)
	path := image(t, size)
	require.NoError(t, format.Make(t.Context(), path, format.MakeOptions{FSType: fsType}))
	return path
}

func requireTool(t *testing.T, fsType string) {
	t.Helper()
	err := format.CanMake(fsType)
	if err == nil {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("missing, and under CI nothing is skipped: %v", err)
	}
	t.Skipf("missing: %v", err)
}

// sum is the hash of the first 64 MiB, which is all of the images that are not for xfs or btrfs.
func sum(t *testing.T, path string) []byte {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	hash := sha256.New()
	_, err = io.Copy(hash, io.LimitReader(file, 64*mib))
	require.NoError(t, err)
	return hash.Sum(nil)
}

func writeAt(t *testing.T, path string, offset int64, data []byte) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteAt(data, offset)
	require.NoError(t, err)
	require.NoError(t, file.Close())
}

func blocks(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	return st.Blocks
}

func TestMakeProbeCheck(t *testing.T) {
	for fsType, size := range map[string]int64{
		"ext2": 16 * mib, "ext3": 32 * mib, "ext4": 32 * mib, "xfs": 320 * mib, "btrfs": 160 * mib,
	} {
		t.Run(fsType, func(t *testing.T) {
			path := formatted(t, fsType, size)
			found, err := format.Probe(t.Context(), path)
			require.NoError(t, err)
			assert.Equal(t, fsType, found.Type)
			assert.Equal(t, format.Filesystem, found.Kind)
			assert.Less(t, blocks(t, path)*512, size, "it stays sparse")

			result, err := format.Check(t.Context(), path, fsType)
			require.NoError(t, err)
			assert.Equal(t, fsType[:3] == "ext", result.Checked)
			assert.False(t, result.Repaired)

			before := sum(t, path)
			err = format.Make(t.Context(), path, format.MakeOptions{FSType: fsType})
			require.ErrorIs(t, err, format.ErrNotBlank, "never twice")
			require.ErrorContains(t, err, fsType)
			assert.Equal(t, before, sum(t, path))
		})
	}
}

func TestMakeKeepsWhatIsAllocated(t *testing.T) {
	requireTool(t, "ext4")
	path := image(t, 64*mib)
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer file.Close()
	err = unix.Fallocate(int(file.Fd()), 0, 0, 64*mib)
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("missing: a filesystem with fallocate below the temporary directory")
	}
	require.NoError(t, err)
	require.NoError(t, format.ProveBlank(t.Context(), path), "allocated and never written")
	require.NoError(t, format.MakeFile(t.Context(), file, format.MakeOptions{FSType: "ext4", Label: "kept"}))
	assert.GreaterOrEqual(t, blocks(t, path)*512, int64(64*mib))
}

// TestMakeKeepsWhatIsAllocatedWhereZerosAreHoles: a tmpfs cannot write zeros but as holes.
func TestMakeKeepsWhatIsAllocatedWhereZerosAreHoles(t *testing.T) {
	mounttest.RequireMounts(t)
	requireTool(t, "ext4")
	dir := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=64m"))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, 0)) })
	for name, allocated := range map[string]bool{"whole": true, "sparse": false} {
		file, err := os.Create(filepath.Join(dir, name))
		require.NoError(t, err)
		require.NoError(t, file.Truncate(16*mib))
		if allocated {
			require.NoError(t, unix.Fallocate(int(file.Fd()), 0, 0, 16*mib))
		}
		require.NoError(t, format.MakeFile(t.Context(), file, format.MakeOptions{FSType: "ext4"}))
		assert.Equal(t, allocated, blocks(t, file.Name())*512 >= 16*mib, name)
		require.NoError(t, file.Close())
	}
}

func TestProveBlank(t *testing.T) {
	path := image(t, 256*mib)
	require.NoError(t, format.ProveBlank(t.Context(), path))
	writeAt(t, path, 100*mib, make([]byte, 8192))
	require.NoError(t, format.ProveBlank(t.Context(), path), "zeros that were written are zeros")
	writeAt(t, path, 123456789, []byte{1})
	err := format.ProveBlank(t.Context(), path)
	var notBlank *format.NotBlankError
	require.ErrorAs(t, err, &notBlank)
	assert.Equal(t, int64(123456789), notBlank.Offset)
	assert.Empty(t, notBlank.Signature.Type)
}

func TestHalfWipedIsNotBlank(t *testing.T) {
	path := formatted(t, "ext4", 64*mib)
	writeAt(t, path, 0, make([]byte, 4096))
	found, err := format.Probe(t.Context(), path)
	require.NoError(t, err)
	require.Empty(t, found.Type, "blkid would call it blank")
	before := sum(t, path)
	err = format.Make(t.Context(), path, format.MakeOptions{FSType: "ext4"})
	require.ErrorIs(t, err, format.ErrNotBlank)
	assert.Equal(t, before, sum(t, path))
}

func TestBackupSuperblockIsRecognised(t *testing.T) {
	path := formatted(t, "ext4", 64*mib)
	group := int64(8193 * 1024) // with blocks of 1 KiB, as mke2fs chooses for so small a filesystem
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	if logBlockSize := content[1024+24]; logBlockSize == 2 {
		group = 32768 * 4096
	}
	alone := image(t, 200*mib)
	writeAt(t, alone, group, content[group:group+1024])
	err = format.ProveBlank(t.Context(), alone)
	var notBlank *format.NotBlankError
	require.ErrorAs(t, err, &notBlank)
	assert.Equal(t, "ext4", notBlank.Signature.Type)
	assert.Equal(t, group+56, notBlank.Signature.Offset)
}

func TestPartitionTableIsNotBlank(t *testing.T) {
	path := image(t, 8*mib)
	writeAt(t, path, 510, []byte{0x55, 0xaa})
	before := sum(t, path)
	err := format.Make(t.Context(), path, format.MakeOptions{FSType: "ext4"})
	require.ErrorIs(t, err, format.ErrNotBlank)
	require.ErrorContains(t, err, "dos partition table")
	assert.Equal(t, before, sum(t, path))
}

func TestMakeRefuses(t *testing.T) {
	path := image(t, 8*mib)
	for _, fsType := range []string{"", "ntfs", "../ext4", "ext4 -F"} {
		err := format.Make(t.Context(), path, format.MakeOptions{FSType: fsType})
		require.ErrorIs(t, err, format.ErrUnknownType, fsType)
		_, err = format.Check(t.Context(), path, fsType)
		require.ErrorIs(t, err, format.ErrUnknownType, fsType)
	}
	requireTool(t, "ext4")
	for _, path := range []string{"/dev/null", filepath.Dir(path)} {
		require.Error(t, format.Make(t.Context(), path, format.MakeOptions{FSType: "ext4"}), path)
	}
	require.ErrorIs(t, format.ProveBlank(t.Context(), "/dev/null"), format.ErrNoMedium)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	err := format.Make(ended, path, format.MakeOptions{FSType: "ext4"})
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, format.ProveBlank(t.Context(), path), "nothing was begun")
}

func TestMakeReportsWhatTheToolSays(t *testing.T) {
	requireTool(t, "xfs")
	path := image(t, 320*mib)
	err := format.Make(t.Context(), path, format.MakeOptions{FSType: "xfs", Label: "a label that is too long"})
	var tool *format.ToolError
	require.ErrorAs(t, err, &tool)
	assert.Equal(t, "mkfs.xfs", tool.Tool)
	assert.Positive(t, tool.ExitCode)
	assert.NotEmpty(t, tool.Output)
}

func TestCheckRepairs(t *testing.T) {
	path := formatted(t, "ext2", 16*mib)          // which has no checksums in the way
	writeAt(t, path, 1024+16, []byte{7, 7, 0, 0}) // the number of free inodes
	writeAt(t, path, 1024+58, []byte{0, 0})       // not unmounted cleanly
	result, err := format.Check(t.Context(), path, "ext2")
	require.NoError(t, err)
	assert.Equal(t, format.CheckResult{Checked: true, Repaired: true}, result)
	result, err = format.Check(t.Context(), path, "ext2")
	require.NoError(t, err)
	assert.False(t, result.Repaired, "the second time")
}

func TestCheckLeavesDamageAlone(t *testing.T) {
	path := formatted(t, "ext4", 16*mib)
	writeAt(t, path, 4096, make([]byte, 1<<20)) // the tables of the first group
	_, err := format.Check(t.Context(), path, "ext4")
	require.ErrorIs(t, err, format.ErrDamaged)
}

func TestCheckOfABrokenSuperblockIsDamage(t *testing.T) {
	for name, at := range map[string]struct{ place, value int64 }{
		"blocks": {4, 0xff}, "checksum": {1020, 0xff}, "size of a block": {24, 0x7f}, "features": {99, 0xff},
	} {
		t.Run(name, func(t *testing.T) {
			path := formatted(t, "ext4", 16*mib)
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			writeAt(t, path, 1024+at.place, []byte{content[1024+at.place] ^ byte(at.value)})
			_, err = format.Check(t.Context(), path, "ext4")
			require.ErrorIs(t, err, format.ErrDamaged)
			var tool *format.ToolError
			require.ErrorAs(t, err, &tool)
		})
	}
	path := formatted(t, "ext2", 16*mib) // without checksums
	writeAt(t, path, 1024+24, []byte{0xff})
	_, err := format.Check(t.Context(), path, "ext2")
	require.ErrorIs(t, err, format.ErrDamaged)
}

func TestAFeatureThatTheToolDoesNotKnowIsNoDamage(t *testing.T) {
	path := formatted(t, "ext2", 16*mib) // without checksums, so that the superblock does not contradict itself
	writeAt(t, path, 1024+99, []byte{0x80})
	_, err := format.Check(t.Context(), path, "ext2")
	var tool *format.ToolError
	require.ErrorAs(t, err, &tool)
	assert.NotErrorIs(t, err, format.ErrDamaged)
}

// device attaches an image; the suite's own directory holds it.
func device(t *testing.T, path string) string {
	t.Helper()
	loops := loop.New(loop.Options{})
	attached, err := loops.Attach(t.Context(), path, loop.AttachOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, loops.Detach(context.WithoutCancel(t.Context()), attached)) })
	return attached.Path
}

func TestBlockDevice(t *testing.T) {
	mounttest.RequireRoot(t)
	requireTool(t, "ext4")
	path := device(t, image(t, 300*mib))
	require.NoError(t, format.ProveBlank(t.Context(), path))
	require.NoError(t, format.Make(t.Context(), path, format.MakeOptions{FSType: "ext4"}))
	found, err := format.Probe(t.Context(), path)
	require.NoError(t, err)
	assert.Equal(t, "ext4", found.Type)
	result, err := format.Check(t.Context(), path, "ext4")
	require.NoError(t, err)
	assert.True(t, result.Checked)

	writeAt(t, path, 0, make([]byte, 9<<20))
	err = format.ProveBlank(t.Context(), path)
	require.ErrorIs(t, err, format.ErrNotBlank, "its backups are there")
	assert.ErrorContains(t, err, "ext4 filesystem")
}

func TestUnreadableDeviceIsNotBlank(t *testing.T) {
	f := mounttest.NewFUSE(t, mounttest.FUSEOptions{Files: map[string]string{"disk.img": strings.Repeat("\x00", 8<<20)}})
	mounttest.RequireRoot(t)
	path := device(t, filepath.Join(f.Path(), "disk.img"))
	f.Fail(mounttest.FUSERead, unix.EIO)
	err := format.ProveBlank(t.Context(), path)
	require.Error(t, err)
	require.NotErrorIs(t, err, format.ErrNotBlank)
	require.ErrorIs(t, err, unix.EIO)
}

func TestTheLeastSizeIsEnough(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		path := formatted(t, fsType, format.SizesOf(fsType).Least)
		if fsType == "ext4" {
			out, err := exec.CommandContext(t.Context(), "dumpe2fs", "-h", path).Output()
			require.NoError(t, err)
			assert.Contains(t, string(out), "has_journal")
		}
	}
	assert.True(t, format.Room{Filesystem: 32 * mib, Device: 33 * mib}.IsWorthGrowing())
	assert.False(t, format.Room{Filesystem: 1023 * mib, Device: 1030 * mib}.IsWorthGrowing())
}
