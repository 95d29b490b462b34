package mount_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// statmounts returns a Mounter on a kernel that has all facts of a mount.
func statmounts(t *testing.T) *mount.Mounter {
	t.Helper()
	mounttest.RequireMounts(t)
	m := mount.New(mount.Options{})
	if !m.HasFacts() {
		t.Skip("missing: statmount with sources (Linux 6.13)")
	}
	return m
}

// oddMounts makes mounts with everything that the mount table has words for, and returns their paths.
func oddMounts(t *testing.T, root string) []string {
	t.Helper()
	var paths []string
	dir := func(name string) string {
		path := filepath.Join(root, name)
		require.NoError(t, os.Mkdir(path, 0o755))
		return path
	}
	add := func(path, source, fsType string, flags uintptr, data string) {
		require.NoError(t, unix.Mount(source, path, fsType, flags, data), path)
		t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
		paths = append(paths, path)
	}
	add(dir("plain"), "memory", "tmpfs", 0, "")
	add(dir("all"), "memory", "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_NOATIME|
		unix.MS_NODIRATIME|unix.MS_NOSYMFOLLOW|unix.MS_SYNCHRONOUS|unix.MS_DIRSYNC|unix.MS_LAZYTIME, "size=64k,mode=0700")
	add(dir("strict"), "memory", "tmpfs", unix.MS_STRICTATIME, "")
	add(dir("a blank\tand\nmore\\ #"), "a source\\with\n#", "tmpfs", 0, "")
	add(dir("x (deleted)"), "none", "tmpfs", 0, "")
	add(dir("ü\xff"), "host:/a b", "tmpfs", 0, "")
	plain := filepath.Join(root, "plain")
	odd := filepath.Join(plain, "s \n\\")
	require.NoError(t, os.Mkdir(odd, 0o755))
	add(dir("bind"), odd, "", unix.MS_BIND, "")
	add(dir("bindro"), plain, "", unix.MS_BIND, "")
	require.NoError(t, unix.Mount("", filepath.Join(root, "bindro"), "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	gone := filepath.Join(plain, "gone")
	require.NoError(t, os.Mkdir(gone, 0o755))
	add(dir("deleted"), gone, "", unix.MS_BIND, "")
	require.NoError(t, os.Remove(gone))
	propagation := func(name string, flags ...uintptr) {
		add(dir(name), plain, "", unix.MS_BIND, "")
		for _, flag := range flags {
			require.NoError(t, unix.Mount("", filepath.Join(root, name), "", flag, ""))
		}
	}
	propagation("unbindable", unix.MS_UNBINDABLE)
	propagation("shared", unix.MS_SHARED)
	shared := filepath.Join(root, "shared")
	add(dir("slave"), shared, "", unix.MS_BIND, "")
	require.NoError(t, unix.Mount("", filepath.Join(root, "slave"), "", unix.MS_SLAVE, ""))
	add(dir("both"), shared, "", unix.MS_BIND, "")
	require.NoError(t, unix.Mount("", filepath.Join(root, "both"), "", unix.MS_SLAVE, ""))
	require.NoError(t, unix.Mount("", filepath.Join(root, "both"), "", unix.MS_SHARED, ""))
	return paths
}

func TestFactsAreThoseOfTheTable(t *testing.T) {
	m := statmounts(t)
	paths := oddMounts(t, t.TempDir())
	table, err := m.List(t.Context())
	require.NoError(t, err)
	require.Greater(t, len(table), len(paths))
	ids := map[uint64]bool{}
	for _, line := range table {
		require.NotZero(t, line.UniqueID, line.Path)
		require.False(t, ids[line.UniqueID], "%q has the id of another", line.Path)
		ids[line.UniqueID] = true
		found, err := m.LookupID(t.Context(), line.UniqueID)
		require.NoError(t, err)
		assert.Equal(t, line, found)
	}
	old := mount.New(mount.Options{Without: mount.AllFeatures})
	for _, path := range paths {
		found, err := m.Lookup(t.Context(), path)
		require.NoError(t, err, path)
		assert.Equal(t, lineOf(t, m, path), found)
		fromTable, err := old.Lookup(t.Context(), path)
		require.NoError(t, err, path)
		assert.Zero(t, fromTable.UniqueID)
		fromTable.UniqueID = found.UniqueID
		assert.Equal(t, fromTable, found)
	}
}

func TestLookupIDFollowsAMount(t *testing.T) {
	m := statmounts(t)
	root := t.TempDir()
	from, to := filepath.Join(root, "from"), filepath.Join(root, "to")
	require.NoError(t, os.Mkdir(to, 0o755))
	mountTmpfs(t, m, from)
	before, err := m.Lookup(t.Context(), from)
	require.NoError(t, err)
	require.NoError(t, unix.Mount(from, to, "", unix.MS_MOVE, ""))
	after, err := m.LookupID(t.Context(), before.UniqueID)
	require.NoError(t, err)
	assert.Equal(t, to, after.Path)
	assert.True(t, before.Identity().Is(after))
	for _, id := range []mount.Identity{before.Identity(), {ID: before.ID, FSType: "tmpfs", Source: "memory"}} {
		is, err := m.Exists(t.Context(), id)
		require.NoError(t, err)
		assert.True(t, is)
	}
	require.NoError(t, m.Unmount(t.Context(), to, plain))
	_, err = m.LookupID(t.Context(), before.UniqueID)
	require.ErrorIs(t, err, mount.ErrNotMounted)
	is, err := m.Exists(t.Context(), before.Identity())
	require.NoError(t, err)
	assert.False(t, is)
	for _, id := range []uint64{0, 1, before.ID, 1<<63 - 1} {
		_, err = m.LookupID(t.Context(), id)
		require.ErrorIs(t, err, mount.ErrNotMounted, "%d is no unique id", id)
	}
}

func TestExistsWithoutUniqueIDs(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		target := filepath.Join(t.TempDir(), "target")
		mountTmpfs(t, m, target)
		found, err := m.Lookup(t.Context(), target)
		require.NoError(t, err)
		is, err := m.Exists(t.Context(), found.Identity())
		require.NoError(t, err)
		assert.True(t, is)
		require.NoError(t, m.Unmount(t.Context(), target, plain))
		is, err = m.Exists(t.Context(), found.Identity())
		require.NoError(t, err)
		assert.False(t, is)
	})
}

func TestLookupIDWithoutUniqueIDs(t *testing.T) {
	mounttest.RequireMounts(t)
	_, err := mount.New(mount.Options{Without: mount.FeatureStatmount}).LookupID(t.Context(), 1<<40)
	require.ErrorIs(t, err, mount.ErrUnsupported)
}

// TestLookupSeesWhatNoEventTellsOf changes a filesystem, a propagation and a path in ways that the kernel does not report.
func TestLookupSeesWhatNoEventTellsOf(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		root := t.TempDir()
		parent := filepath.Join(root, "parent")
		target := filepath.Join(parent, "target")
		mountTmpfs(t, m, target)
		_, err := m.List(t.Context()) // now it is kept
		require.NoError(t, err)
		reconfigure(t, target, "ro")
		found, err := m.Lookup(t.Context(), target)
		require.NoError(t, err)
		assert.True(t, found.ReadOnly())
		require.NoError(t, unix.Mount("", target, "", unix.MS_SHARED, ""))
		found, err = m.Lookup(t.Context(), target)
		require.NoError(t, err)
		assert.Len(t, found.Propagation, 1)
		moved := filepath.Join(root, "moved")
		require.NoError(t, os.Rename(parent, moved))
		_, err = m.Lookup(t.Context(), target)
		require.ErrorIs(t, err, mount.ErrNotMounted)
		_, err = m.IsMountPoint(t.Context(), target)
		require.ErrorIs(t, err, os.ErrNotExist)
		found, err = m.Lookup(t.Context(), filepath.Join(moved, "target"))
		require.NoError(t, err)
		assert.Equal(t, filepath.Join(moved, "target"), found.Path)
		require.NoError(t, m.Unmount(t.Context(), filepath.Join(moved, "target"), plain))
	})
}

// reconfigure changes the filesystem of a mount, but not the mount.
func reconfigure(t *testing.T, path string, flags ...string) {
	t.Helper()
	fd, err := unix.Fspick(unix.AT_FDCWD, path, unix.FSPICK_CLOEXEC)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Close(fd)) }()
	for _, flag := range flags {
		require.NoError(t, unix.FsconfigSetFlag(fd, flag))
	}
	require.NoError(t, unix.FsconfigReconfigure(fd))
}
