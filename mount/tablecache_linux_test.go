package mount_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// at returns the mount at the path in the table that List returns, or nil.
func at(t *testing.T, m *mount.Mounter, path string) *mount.MountPoint {
	t.Helper()
	table, err := m.List(t.Context())
	require.NoError(t, err)
	i := slices.IndexFunc(table, func(mp mount.MountPoint) bool { return mp.Path == path })
	if i < 0 {
		return nil
	}
	return &table[i]
}

func TestListIsKeptUntilThereIsAChange(t *testing.T) {
	mounttest.RequireMounts(t)
	m := mount.New(mount.Options{})
	dir := t.TempDir()
	mountForeign(t, dir)
	synctest.Test(t, func(t *testing.T) { // in which no time goes by
		first := at(t, m, dir)
		require.NotNil(t, first)
		assert.Same(t, first, at(t, m, dir), "nothing has changed")
		_, err := m.GetMountRefs(t.Context(), dir)
		require.NoError(t, err)
		assert.Same(t, first, at(t, m, dir))
		require.NoError(t, unix.Unmount(dir, unix.UMOUNT_NOFOLLOW))
		assert.Nil(t, at(t, m, dir))
	})
}

// TestListMakesNothingOfItsContext reads the table in a bubble with a context from outside, which ends there.
func TestListMakesNothingOfItsContext(t *testing.T) {
	mounttest.RequireMounts(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel() // closes the context's channel, if a call of Done has made one
	synctest.Test(t, func(t *testing.T) {
		_, err := mount.New(mount.Options{}).List(ctx)
		require.NoError(t, err)
	})
}

// TestListSeesEveryReportedChangeAtOnce makes changes behind the back of a Mounter whose table is kept.
func TestListSeesEveryReportedChangeAtOnce(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		root := t.TempDir()
		one, two := filepath.Join(root, "one"), filepath.Join(root, "two")
		require.NoError(t, os.Mkdir(one, 0o755))
		require.NoError(t, os.Mkdir(two, 0o755))
		synctest.Test(t, func(t *testing.T) {
			has := func(option string) bool { return slices.Contains(at(t, m, one).Options, option) }
			assert.Nil(t, at(t, m, one))
			mountForeign(t, one)
			require.NotNil(t, at(t, m, one), "mount")
			require.NoError(t, unix.Mount("", one, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOSUID, ""))
			assert.True(t, has("nosuid"), "mount(MS_REMOUNT|MS_BIND)")
			require.NoError(t, unix.MountSetattr(-1, one, 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}))
			assert.True(t, has("ro"), "mount_setattr")
			require.NoError(t, unix.MountSetattr(-1, one, 0, &unix.MountAttr{Propagation: unix.MS_SHARED}))
			assert.Len(t, at(t, m, one).Propagation, 1, "mount_setattr of the propagation")
			require.NoError(t, unix.MountSetattr(-1, one, 0, &unix.MountAttr{Propagation: unix.MS_PRIVATE}))
			require.NoError(t, unix.Mount("", one, "", unix.MS_REMOUNT, "size=128k"))
			assert.Contains(t, at(t, m, one).SuperOptions, "size=128k", "mount(MS_REMOUNT)")
			require.NoError(t, unix.Mount(one, two, "", unix.MS_MOVE, ""))
			assert.Nil(t, at(t, m, one), "move")
			require.NotNil(t, at(t, m, two), "move")
			require.NoError(t, unix.Unmount(two, unix.UMOUNT_NOFOLLOW))
			assert.Nil(t, at(t, m, two), "umount")
		})
	})
}

// TestListSeesWhatIsDoneInAnotherNamespace lets a peer unmount, and another process remove the directory of a mount.
func TestListSeesWhatIsDoneInAnotherNamespace(t *testing.T) {
	mounttest.RequireRoot(t)
	m := mount.New(mount.Options{})
	root := t.TempDir()
	mountForeign(t, root)
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
	require.NoError(t, unix.Mount("", root, "", unix.MS_SHARED, ""))
	elsewhere := func(propagation, script string) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "unshare", "-m", "--propagation", propagation, "sh", "-ec", script,
			"sh", filepath.Join(root, "a")).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	dir := filepath.Join(root, "a")
	require.NoError(t, os.Mkdir(dir, 0o755))
	assert.Nil(t, at(t, m, dir))
	elsewhere("unchanged", `mount -t tmpfs peer "$1"`)
	require.NotNil(t, at(t, m, dir), "mount by a peer")
	elsewhere("unchanged", `umount "$1"`)
	assert.Nil(t, at(t, m, dir), "unmount by a peer")
	mountForeign(t, dir)
	require.NotNil(t, at(t, m, dir))
	elsewhere("private", `umount "$1"; rmdir "$1"`)
	assert.Nil(t, at(t, m, dir), "removal of the directory where it is no mount point")
}

// TestListSeesWhatNoEventTellsOfLater makes the changes that the kernel does not report.
func TestListSeesWhatNoEventTellsOfLater(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		root := t.TempDir()
		before, after := filepath.Join(root, "before"), filepath.Join(root, "after")
		require.NoError(t, os.MkdirAll(filepath.Join(before, "mnt"), 0o755))
		mountForeign(t, filepath.Join(before, "mnt"))
		synctest.Test(t, func(t *testing.T) {
			require.NotNil(t, at(t, m, filepath.Join(before, "mnt")))
			reconfigure(t, filepath.Join(before, "mnt"), "ro")
			require.NoError(t, unix.Mount("", filepath.Join(before, "mnt"), "", unix.MS_SHARED, ""))
			require.NoError(t, os.Rename(before, after))
			time.Sleep(mount.MaxTableAge) // of the bubble
			now := at(t, m, filepath.Join(after, "mnt"))
			require.NotNil(t, now, "the path")
			assert.Contains(t, now.SuperOptions, "ro")
			assert.Len(t, now.Propagation, 1)
		})
		require.NoError(t, unix.Unmount(filepath.Join(after, "mnt"), unix.UMOUNT_NOFOLLOW))
	})
}

// TestListSeesAtOnceThatABlockDeviceTurnedReadOnly has a filesystem that says it is on a device.
func TestListSeesAtOnceThatABlockDeviceTurnedReadOnly(t *testing.T) {
	m := statmounts(t)
	dir := t.TempDir()
	require.NoError(t, unix.Mount("/dev/no-such-device", dir, "tmpfs", 0, ""))
	synctest.Test(t, func(t *testing.T) {
		require.False(t, at(t, m, dir).ReadOnly())
		reconfigure(t, dir, "ro")
		assert.True(t, at(t, m, dir).ReadOnly())
		reconfigure(t, dir, "rw")
		assert.False(t, at(t, m, dir).ReadOnly())
	})
	require.NoError(t, unix.Unmount(dir, unix.UMOUNT_NOFOLLOW))
}

// TestListIsCurrentForAllWhoAsk has several ask at once after a change, of which the kernel tells but one.
func TestListIsCurrentForAllWhoAsk(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		dir := t.TempDir()
		check := func(want bool) {
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					table, err := m.List(t.Context())
					assert.NoError(t, err)
					is := slices.ContainsFunc(table, func(mp mount.MountPoint) bool { return mp.Path == dir })
					assert.Equal(t, want, is)
				})
			}
			all.Wait()
		}
		for range 200 {
			check(false)
			mountForeign(t, dir)
			check(true)
			require.NoError(t, unix.Unmount(dir, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH))
		}
	})
}

// TestUniqueIDsAreRightWhileMountsChange reads tables while others mount, and compares the ids.
func TestUniqueIDsAreRightWhileMountsChange(t *testing.T) {
	m := statmounts(t)
	root := t.TempDir()
	var standing []string
	for _, name := range []string{"a", "b", "c", "d"} {
		path := filepath.Join(root, name)
		mountTmpfs(t, m, path)
		standing = append(standing, path)
	}
	ids := map[string]uint64{}
	for _, path := range standing {
		found, err := m.Lookup(t.Context(), path)
		require.NoError(t, err)
		ids[path] = found.UniqueID
	}
	ctx, cancel := context.WithCancel(t.Context())
	var changing sync.WaitGroup
	for _, name := range []string{"x", "y"} {
		dir := filepath.Join(root, name)
		require.NoError(t, os.Mkdir(dir, 0o755))
		changing.Go(func() {
			for ctx.Err() == nil {
				assert.NoError(t, unix.Mount("foreign", dir, "tmpfs", 0, ""))
				assert.NoError(t, unix.Unmount(dir, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH))
			}
		})
	}
	for range 500 {
		table, err := m.List(t.Context())
		require.NoError(t, err)
		seen := 0
		for _, mp := range table {
			if want, ok := ids[mp.Path]; ok {
				assert.Equal(t, want, mp.UniqueID, mp.Path)
				seen++
			}
		}
		assert.Equal(t, len(standing), seen)
	}
	cancel()
	changing.Wait()
}

// TestMounterKeepsOneDescriptor asks in turn for what is kept, of the table and of references. No collection of garbage
// closes what was only forgotten, and what other tests have left can but become less.
func TestMounterKeepsOneDescriptor(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		dir, other := t.TempDir(), t.TempDir()
		mountForeign(t, other)
		references := func(path string) {
			_, err := m.GetMountRefs(t.Context(), path)
			require.NoError(t, err)
		}
		before := openTables(t)
		check := func() {
			t.Helper()
			require.LessOrEqual(t, openTables(t)-before, 1)
		}
		for range 10 {
			mountForeign(t, dir)
			references(dir)
			check()
			references(other)
			check()
			require.NotNil(t, at(t, m, dir))
			check()
			require.NoError(t, unix.Unmount(dir, unix.UMOUNT_NOFOLLOW))
			references(other)
			check()
			require.Nil(t, at(t, m, dir))
			check()
		}
		require.NoError(t, unix.Unmount(other, unix.UMOUNT_NOFOLLOW))
	})
}

// TestMounterKeepsOneDescriptorWhenItsTableIsOld has nothing change but the time.
func TestMounterKeepsOneDescriptorWhenItsTableIsOld(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		dir := t.TempDir()
		mountForeign(t, dir)
		before := openTables(t)
		synctest.Test(t, func(t *testing.T) {
			require.NotNil(t, at(t, m, dir))
			time.Sleep(mount.MaxTableAge) // of the bubble
			_, err := m.GetMountRefs(t.Context(), dir)
			require.NoError(t, err)
		})
		assert.LessOrEqual(t, openTables(t)-before, 1)
		require.NoError(t, unix.Unmount(dir, unix.UMOUNT_NOFOLLOW))
	})
}

// TestMounterKeepsOneDescriptorForAllWhoAsk has several ask at once for the table and for references.
func TestMounterKeepsOneDescriptorForAllWhoAsk(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		dir, other := t.TempDir(), t.TempDir()
		mountForeign(t, other)
		before := openTables(t)
		for range 20 {
			mountForeign(t, dir)
			var all sync.WaitGroup
			for range 2 {
				all.Go(func() {
					_, err := m.GetMountRefs(t.Context(), other)
					assert.NoError(t, err)
				})
				all.Go(func() {
					_, err := m.List(t.Context())
					assert.NoError(t, err)
				})
			}
			all.Wait()
			require.LessOrEqual(t, openTables(t)-before, 1)
			require.NoError(t, unix.Unmount(dir, unix.UMOUNT_NOFOLLOW))
		}
		require.NoError(t, unix.Unmount(other, unix.UMOUNT_NOFOLLOW))
	})
}

// openTables counts the open mount tables.
func openTables(t *testing.T) (n int) {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, name := range names {
		if link, err := os.Readlink("/proc/self/fd/" + name.Name()); err == nil && strings.HasSuffix(link, "/mountinfo") {
			n++
		}
	}
	return n
}

func TestListAllocates(t *testing.T) {
	mounttest.RequireMounts(t)
	root := t.TempDir()
	require.NoError(t, unix.Mount("memory", root, "tmpfs", 0, ""))
	defer func() { assert.NoError(t, unix.Unmount(root, unix.MNT_DETACH)) }()
	source := filepath.Join(root, "source")
	require.NoError(t, os.Mkdir(source, 0o755))
	for i := range 200 {
		path := filepath.Join(root, strings.Repeat("x", i+1))
		require.NoError(t, os.Mkdir(path, 0o755))
		require.NoError(t, unix.Mount(source, path, "", unix.MS_BIND, ""))
	}
	synctest.Test(t, func(t *testing.T) { // in which the table does not get old
		ctx := t.Context()
		list := func(m *mount.Mounter) {
			_, err := m.List(ctx)
			assert.NoError(t, err)
		}
		few := 20.0
		if strings.ContainsAny(root, " \t\\") {
			few += 201 // a path that the table escapes is a string of its own
		}
		assert.LessOrEqual(t, fewestAllocs(func() { list(mount.New(mount.Options{})) }), few, "the first time, with a new Mounter")
		m := mount.New(mount.Options{})
		list(m)
		assert.Zero(t, fewestAllocs(func() { list(m) }), "again")
	})
	m, ctx := mount.New(mount.Options{}), t.Context()
	if !m.HasFacts() {
		return // then the table is asked
	}
	assert.Zero(t, fewestAllocs(func() {
		is, err := m.IsMountPoint(ctx, root)
		assert.True(t, is)
		assert.NoError(t, err)
	}))
	assert.LessOrEqual(t, fewestAllocs(func() {
		_, err := m.Lookup(ctx, root)
		assert.NoError(t, err)
	}), 8.0)
}

// fewestAllocs is how often f allocates when it is not disturbed: the rest of this process allocates too, and a walk that
// another process disturbs by a mount has to be repeated where it may wait.
func fewestAllocs(f func()) float64 {
	least := testing.AllocsPerRun(1, f)
	for range 100 {
		least = min(least, testing.AllocsPerRun(1, f))
	}
	return least
}

// TestRefs finds the references of a mount in each of the ways: asked for, from memory, and from the table.
func TestRefs(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		root := t.TempDir()
		memory := filepath.Join(root, "memory")
		mountTmpfs(t, m, memory)
		part := filepath.Join(memory, "part")
		require.NoError(t, os.Mkdir(part, 0o755))
		bind := func(source, name string) string {
			path := filepath.Join(root, name)
			require.NoError(t, os.Mkdir(path, 0o755))
			require.NoError(t, unix.Mount(source, path, "", unix.MS_BIND, ""))
			t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
			return path
		}
		one, two, other := bind(memory, "a\nb"), bind(memory, "two"), bind(part, "other")
		refs := func(path string) []string {
			found, err := m.GetMountRefs(t.Context(), path)
			require.NoError(t, err)
			return slices.Sorted(slices.Values(found))
		}
		for range 2 { // the second time from memory
			assert.Equal(t, []string{one, memory}, refs(two))
		}
		requireClipped(t, m, two)
		assert.Equal(t, []string{memory, two}, sorted(refs(one)), "of another")
		assert.Empty(t, refs(other))
		assert.Empty(t, refs(part), "no mount point")
		assert.Equal(t, []string{one, two}, sorted(refs(memory)))
		require.NoError(t, unix.Unmount(one, unix.UMOUNT_NOFOLLOW))
		assert.Equal(t, []string{memory}, refs(two), "a change is seen")
		require.NotNil(t, at(t, m, two))
		assert.Equal(t, []string{memory}, refs(two))
		require.NoError(t, unix.Unmount(two, unix.UMOUNT_NOFOLLOW))
		assert.Empty(t, refs(two))
		assert.Empty(t, refs(memory))
	})
}

// TestRefsAfterARename: what was kept of other mounts is asked anew, whichever of them the directory was bound to first.
func TestRefsAfterARename(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		root := t.TempDir()
		shown := filepath.Join(root, "shown")
		require.NoError(t, os.Mkdir(shown, 0o755))
		bind := func(source, name string) string {
			path := filepath.Join(root, name)
			require.NoError(t, os.Mkdir(path, 0o755))
			require.NoError(t, unix.Mount(source, path, "", unix.MS_BIND, ""))
			t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
			return path
		}
		refs := func(path string) []string {
			found, err := m.GetMountRefs(t.Context(), path)
			require.NoError(t, err)
			return sorted(found)
		}
		one, two := bind(shown, "one"), bind(shown, "two")
		assert.Equal(t, []string{two}, refs(one))
		renamed := filepath.Join(root, "renamed")
		require.NoError(t, os.Rename(shown, renamed))
		three := bind(renamed, "three")
		assert.Equal(t, []string{one, two}, refs(three), "of a mount that came after the rename")
		assert.Equal(t, []string{three, two}, refs(one))
		require.NoError(t, os.Mkdir(shown, 0o755))
		other := bind(shown, "other")
		assert.Empty(t, refs(other), "another directory of that name")
		require.NoError(t, os.Rename(renamed, filepath.Join(root, "again")))
		bind(shown, "unrelated") // which the kernel tells of, as it does not of a rename
		assert.Equal(t, []string{one, three}, refs(two))
	})
}

// requireClipped requires that an append to a shared result does not change what other callers see.
func requireClipped(t *testing.T, m *mount.Mounter, path string) {
	t.Helper()
	paths, err := m.GetMountRefs(t.Context(), path)
	require.NoError(t, err)
	assert.Len(t, paths, cap(paths))
	table, err := m.List(t.Context())
	require.NoError(t, err)
	assert.Len(t, table, cap(table))
}

func sorted(paths []string) []string { return slices.Sorted(slices.Values(paths)) }

func TestManyRefs(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		root := t.TempDir()
		require.NoError(t, unix.Mount("memory", root, "tmpfs", 0, ""))
		defer func() { assert.NoError(t, unix.Unmount(root, unix.MNT_DETACH)) }()
		source := filepath.Join(root, "source")
		require.NoError(t, os.Mkdir(source, 0o755))
		require.NoError(t, unix.Mount("memory", source, "tmpfs", 0, ""))
		want := mount.MaxRefsQueried + 3
		for i := range want {
			path := filepath.Join(root, strings.Repeat("x", 1+i/20)+string(rune('a'+i%20)))
			require.NoError(t, os.Mkdir(path, 0o755))
			require.NoError(t, unix.Mount(source, path, "", unix.MS_BIND, ""))
		}
		for range 2 {
			refs, err := m.GetMountRefs(t.Context(), source)
			require.NoError(t, err)
			assert.Len(t, refs, want)
			assert.NotContains(t, refs, source)
		}
	})
}

// TestRefsAmongMany finds the references of a mount among so many others that they are shared out.
func TestRefsAmongMany(t *testing.T) {
	mounttest.RequireMounts(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2)) // with one processor no caller would share
	root := t.TempDir()
	require.NoError(t, unix.Mount("memory", root, "tmpfs", 0, ""))
	defer func() { assert.NoError(t, unix.Unmount(root, unix.MNT_DETACH)) }()
	one := filepath.Join(root, "one")
	require.NoError(t, os.Mkdir(one, 0o755))
	mountForeign(t, one)
	var want []string
	for i := range 5 * mount.RefsPart {
		path, source := filepath.Join(root, strconv.Itoa(i)), root
		if i%100 == 0 {
			source, want = one, append(want, path)
		}
		require.NoError(t, os.Mkdir(path, 0o755))
		require.NoError(t, unix.Mount(source, path, "", unix.MS_BIND, ""))
	}
	for range 20 { // shared out in another way each time
		refs, err := mount.New(mount.Options{}).GetMountRefs(t.Context(), one)
		require.NoError(t, err)
		require.Equal(t, want, refs)
	}
}

// TestLargeTableIsTheSameFromBothSides compares a table that is large enough to be read from both sides with one that is
// read as a whole, and mounts while it is read.
func TestLargeTableIsTheSameFromBothSides(t *testing.T) {
	m := statmounts(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2)) // with one processor there would be one side
	root := t.TempDir()
	require.NoError(t, unix.Mount("memory", root, "tmpfs", 0, ""))
	defer func() { assert.NoError(t, unix.Unmount(root, unix.MNT_DETACH)) }()
	oddMounts(t, root)
	plain := filepath.Join(root, "plain")
	for i := range mount.MinBothEnds {
		path := filepath.Join(root, strings.Repeat("d", 1+i/20)+string(rune('a'+i%20)))
		require.NoError(t, os.Mkdir(path, 0o755))
		require.NoError(t, unix.Mount(plain, path, "", unix.MS_BIND, ""))
		if i%3 == 0 {
			require.NoError(t, unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID, ""))
		}
	}
	whole, err := m.ReadWholeTable(t.Context())
	require.NoError(t, err)
	require.True(t, m.ReadsBothEnds(t), "it is large enough")
	for range 20 { // the sides meet elsewhere each time
		table, err := mount.New(mount.Options{}).List(t.Context())
		require.NoError(t, err)
		require.Equal(t, whole, table)
	}
	dir := filepath.Join(root, "changing")
	require.NoError(t, os.Mkdir(dir, 0o755))
	ctx, cancel := context.WithCancel(t.Context())
	var changing sync.WaitGroup
	changing.Go(func() {
		for ctx.Err() == nil {
			assert.NoError(t, unix.Mount("foreign", dir, "tmpfs", 0, ""))
			assert.NoError(t, unix.Unmount(dir, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH))
		}
	})
	for range 50 {
		table, err := m.List(t.Context())
		require.NoError(t, err)
		table = slices.DeleteFunc(slices.Clone(table), func(mp mount.MountPoint) bool { return mp.Path == dir })
		assert.Equal(t, whole, table, "the standing mounts are all there, with their ids")
	}
	cancel()
	changing.Wait()
}
