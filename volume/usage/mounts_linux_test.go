package usage

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/treewalk"
	"github.com/volumekit/volumekit/mount/mounttest"
)

func TestMain(m *testing.M) { mounttest.Main(m) }

func mountAt(t *testing.T, source, target, fsType string, flags uintptr) {
	t.Helper()
	require.NoError(t, unix.Mount(source, target, fsType, flags, ""))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(target, 0)) })
}

// newTmpfs mounts a filesystem in memory, with which everything in it goes.
func newTmpfs(t *testing.T) string {
	t.Helper()
	mounttest.RequireMounts(t)
	dir := t.TempDir()
	require.NoError(t, unix.Mount("usage", dir, "tmpfs", 0, "nr_inodes=400000"))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, 0)) })
	return dir
}

// TestMeasureLeavesOutWhatIsMounted mounts a directory and a file, of another filesystem and of the same one, into the
// tree. Of the directory in which a file is mounted everything else must still count.
func TestMeasureLeavesOutWhatIsMounted(t *testing.T) {
	mounttest.RequireMounts(t)
	for name, foreign := range map[string]string{"another filesystem": newTmpfs(t), "the same filesystem": t.TempDir()} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write(t, filepath.Join(foreign, "below", "file"), 1<<20)
			for i := range 20 {
				write(t, filepath.Join(root, "files", fmt.Sprint(i)), 4096)
			}
			require.NoError(t, os.Mkdir(filepath.Join(root, "directory"), 0o750))
			bare, err := Measure(t.Context(), root)
			require.NoError(t, err)
			require.Equal(t, expected(t, root), bare)
			hidden := expected(t, filepath.Join(root, "directory"))
			covered := expected(t, filepath.Join(root, "files", "10"))

			mountAt(t, foreign, filepath.Join(root, "directory"), "", unix.MS_BIND)
			mountAt(t, filepath.Join(foreign, "below", "file"), filepath.Join(root, "files", "10"), "", unix.MS_BIND)
			want := Usage{
				Bytes: bare.Bytes - hidden.Bytes - covered.Bytes, Inodes: bare.Inodes - hidden.Inodes - covered.Inodes,
			}
			for _, without := range []treewalk.Feature{0, treewalk.FeatureMountRoot, treewalk.FeatureOpenat2} {
				got, err := walk(t.Context(), root, treewalk.Options{Without: without})
				require.NoError(t, err)
				assert.Equal(t, want, got)
			}
			got, err := Measure(t.Context(), filepath.Join(root, "directory"))
			require.NoError(t, err, "a root that is a mount is measured")
			assert.Equal(t, expected(t, foreign), got)
		})
	}
}

// TestMeasureDirectoryOfManyFiles measures a directory with far more entries than one read returns.
func TestMeasureDirectoryOfManyFiles(t *testing.T) {
	root := newTmpfs(t)
	fd, err := openAt(unix.AT_FDCWD, root, unix.O_PATH)
	require.NoError(t, err)
	defer closeFD(fd)
	const n = 200_000
	for i := range n {
		require.NoError(t, unix.Mknodat(fd, fmt.Sprintf("file-%06d", i), unix.S_IFREG|0o600, 0))
	}
	got, err := Measure(t.Context(), root)
	require.NoError(t, err)
	assert.EqualValues(t, n+1, got.Inodes)
}

// TestMeasureDeepTree holds that depth costs no descriptors, with names that no path could hold together.
func TestMeasureDeepTree(t *testing.T) {
	for name, tc := range map[string]struct {
		depth    int
		name     string
		siblings int
	}{
		"a chain":    {100_000, "d", 0},
		"with leafs": {5_000, "d", 2},
		"long names": {400, strings.Repeat("n", 200), 1},
	} {
		t.Run(name, func(t *testing.T) {
			root := newTmpfs(t)
			makeDeep(t, root, tc.name, tc.depth, tc.siblings)
			before := openDescriptors(t)
			got, err := withFewDescriptors(t, 16, func() (Usage, error) { return Measure(t.Context(), root) })
			require.NoError(t, err)
			assert.EqualValues(t, 1+(1+tc.siblings)*tc.depth, got.Inodes)
			assert.Equal(t, before, openDescriptors(t))
		})
	}
}

// withFewDescriptors measures while this process may have only so many more open.
func withFewDescriptors(t *testing.T, more int, measure func() (Usage, error)) (Usage, error) {
	t.Helper()
	used, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	few := limit
	few.Cur = uint64(len(used) + more)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }()
	return measure()
}

// makeDeep makes depth directories in each other, each with siblings, by descriptors.
func makeDeep(t *testing.T, root, name string, depth, siblings int) {
	t.Helper()
	const levels = 10 // for which one directory is opened
	const flags = unix.O_PATH | unix.O_DIRECTORY
	fd, err := openAt(unix.AT_FDCWD, root, flags)
	require.NoError(t, err)
	for made := 0; made < depth; {
		path := ""
		for range min(levels, depth-made) {
			for i := range siblings {
				require.NoError(t, unix.Mkdirat(fd, fmt.Sprintf("%ssibling-%d", path, i), 0o750))
			}
			require.NoError(t, unix.Mkdirat(fd, path+name, 0o750))
			path += name + "/"
			made++
		}
		below, err := openAt(fd, path, flags)
		require.NoError(t, err)
		closeFD(fd)
		fd = below
	}
	closeFD(fd)
}

func TestFSAgainstTheKernel(t *testing.T) {
	mounttest.RequireMounts(t)
	dir := t.TempDir()
	require.NoError(t, unix.Mount("usage", dir, "tmpfs", 0, "size=64m,nr_inodes=1000"))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, 0)) })
	write(t, filepath.Join(dir, "file"), 3<<20)
	var st unix.Stat_t
	require.NoError(t, unix.Stat(dir, &st))

	info, err := FS(t.Context(), dir, Expect{})
	require.NoError(t, err)
	assert.Equal(t, FSInfo{
		Capacity: 64 << 20, Available: 61 << 20, Used: 3 << 20,
		Inodes: 1000, InodesFree: 998, InodesUsed: 2, Device: st.Dev,
	}, info)
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(dir, link))
	followed, err := FS(t.Context(), link, Expect{MountPoint: true, Device: st.Dev})
	require.NoError(t, err)
	assert.Equal(t, info, followed)
}

// TestFSOfWhatIsMeant asks for the filesystem of a volume that is there, is not there any more, or is another one.
func TestFSOfWhatIsMeant(t *testing.T) {
	volume, other := newTmpfs(t), newTmpfs(t)
	base := t.TempDir()
	target := filepath.Join(base, "volume")
	require.NoError(t, os.Mkdir(target, 0o750))
	whole, err := FS(t.Context(), base, Expect{})
	require.NoError(t, err)
	meant, err := FS(t.Context(), volume, Expect{})
	require.NoError(t, err)
	require.NotEqual(t, whole.Device, meant.Device)
	check := func(path string, expect Expect, want *WrongFilesystemError) {
		t.Helper()
		for _, describe := range []func(int) (location, error){locationOf, locationByIDs} {
			info, err := filesystemBy(t.Context(), describe, path, expect)
			if want == nil {
				require.NoError(t, err)
				continue
			}
			assert.Zero(t, info)
			require.ErrorIs(t, err, ErrWrongFilesystem)
			var wrong *WrongFilesystemError
			require.ErrorAs(t, err, &wrong)
			assert.Equal(t, want, wrong)
			assert.ErrorContains(t, err, path)
		}
	}
	mounted, device := Expect{MountPoint: true}, Expect{Device: meant.Device}
	both := Expect{MountPoint: true, Device: meant.Device}

	check(target, mounted, &WrongFilesystemError{Path: target, Expected: mounted, Device: whole.Device})
	check(target, device, &WrongFilesystemError{Path: target, Expected: device, Device: whole.Device})
	mountAt(t, volume, target, "", unix.MS_BIND)
	check(target, both, nil)
	check("/", mounted, nil)
	below := filepath.Join(target, "below")
	require.NoError(t, os.Mkdir(below, 0o750))
	check(below, device, nil)
	check(below, both, &WrongFilesystemError{Path: below, Expected: both, Device: meant.Device})

	same := filepath.Join(base, "same")
	require.NoError(t, os.Mkdir(same, 0o750))
	mountAt(t, base, same, "", unix.MS_BIND)
	check(same, mounted, nil) // a bind of the filesystem that it lies on
	mountAt(t, other, target, "", unix.MS_BIND)
	stacked, err := FS(t.Context(), other, Expect{})
	require.NoError(t, err)
	check(target, both, &WrongFilesystemError{Path: target, Expected: both, MountPoint: true, Device: stacked.Device})
}

func TestFSOfAFileThatIsMounted(t *testing.T) {
	volume := newTmpfs(t)
	source, target := filepath.Join(volume, "file"), filepath.Join(t.TempDir(), "file")
	write(t, source, 1)
	write(t, target, 1)
	_, err := FS(t.Context(), target, Expect{MountPoint: true})
	require.ErrorIs(t, err, ErrWrongFilesystem)
	mountAt(t, source, target, "", unix.MS_BIND)
	_, err = FS(t.Context(), target, Expect{MountPoint: true})
	require.NoError(t, err)
}

func TestFSOfAMissingPath(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	_, err := FS(t.Context(), missing, Expect{MountPoint: true})
	require.ErrorIs(t, err, fs.ErrNotExist)
	var path *fs.PathError
	require.ErrorAs(t, err, &path)
	assert.Equal(t, missing, path.Path)
}
