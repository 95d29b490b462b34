package usage

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// expected is what a tree occupies, found by path: each inode of root's device once.
func expected(t *testing.T, root string) Usage {
	t.Helper()
	var used Usage
	seen := map[uint64]bool{}
	require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		require.True(t, ok)
		if !seen[st.Ino] {
			seen[st.Ino] = true
			used.Inodes++
			used.Bytes += st.Blocks * 512
		}
		return nil
	}))
	return used
}

func write(t *testing.T, path string, size int) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
	require.NoError(t, os.WriteFile(path, make([]byte, size), 0o600))
}

func TestMeasureTree(t *testing.T) {
	root := t.TempDir()
	for i := range 3 {
		for j := range 400 { // more than one read of directory entries
			write(t, filepath.Join(root, fmt.Sprintf("d%d", i), fmt.Sprintf("a-rather-long-name-of-a-file-%d", j)), j%7*1000)
		}
	}
	require.NoError(t, os.Symlink("/", filepath.Join(root, "link-to-everything")))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(root, "broken-link")))
	require.NoError(t, unix.Mkfifo(filepath.Join(root, "pipe"), 0o600))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "empty", "emptier"), 0o750))
	socket, err := new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join(root, "s"))
	require.NoError(t, err)
	defer socket.Close()

	got, err := Measure(t.Context(), root)
	require.NoError(t, err)
	assert.Equal(t, expected(t, root), got)
	assert.EqualValues(t, 1+3+3*400+2+1+2+1, got.Inodes)
}

func TestMeasureHardLinksOnce(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "a", "file"), 1<<20)
	one, err := Measure(t.Context(), root)
	require.NoError(t, err)
	for _, name := range []string{"a/again", "b"} {
		require.NoError(t, os.Link(filepath.Join(root, "a", "file"), filepath.Join(root, name)))
	}
	linked, err := Measure(t.Context(), root)
	require.NoError(t, err)
	assert.Equal(t, one.Inodes, linked.Inodes)
	assert.Equal(t, expected(t, root), linked)
}

func TestMeasureHolesAreFree(t *testing.T) {
	root := t.TempDir()
	sparse := filepath.Join(root, "sparse")
	write(t, sparse, 1<<16)
	require.NoError(t, os.Truncate(sparse, 1<<40))
	got, err := Measure(t.Context(), root)
	require.NoError(t, err)
	assert.Equal(t, expected(t, root), got)
	assert.Less(t, got.Bytes, int64(1<<24))
	assert.GreaterOrEqual(t, got.Bytes, int64(1<<16))
}

func TestMeasureRootThatIsNoDirectory(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	write(t, file, 1<<16)
	got, err := Measure(t.Context(), file)
	require.NoError(t, err)
	assert.Equal(t, expected(t, file), got)

	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink("/", link))
	got, err = Measure(t.Context(), link)
	require.NoError(t, err)
	assert.EqualValues(t, 1, got.Inodes, "a link is not followed")

	_, err = Measure(t.Context(), filepath.Join(dir, "missing"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	var path *fs.PathError
	require.ErrorAs(t, err, &path)
	assert.Equal(t, filepath.Join(dir, "missing"), path.Path)
}

// TestMeasureDeepTree holds that depth costs no descriptors, with names that no path could hold together.
func TestMeasureDeepTree(t *testing.T) {
	const depth = 400
	root := t.TempDir()
	makeDeep(t, root, depth)

	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	before := openDescriptors(t)
	few := limit
	few.Cur = uint64(before + maxOpen + 8)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	got, err := Measure(t.Context(), root)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))

	require.NoError(t, err)
	assert.EqualValues(t, 1+2*depth, got.Inodes)
	assert.Equal(t, before, openDescriptors(t))
}

// makeDeep makes depth directories in each other, each with a sibling, by descriptors.
func makeDeep(t *testing.T, root string, depth int) {
	t.Helper()
	name := strings.Repeat("n", 200)
	fd, err := openDir(unix.AT_FDCWD, root)
	require.NoError(t, err)
	for range depth {
		require.NoError(t, unix.Mkdirat(fd, name, 0o750))
		require.NoError(t, unix.Mkdirat(fd, "sibling", 0o750))
		below, err := openDir(fd, name)
		require.NoError(t, err)
		closeDir(fd)
		fd = below
	}
	closeDir(fd)
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

// at runs do before the given check of the context, of which there is one per read of directory entries.
type at struct {
	context.Context //nolint:containedctx // It is a context.

	checks int
	do     map[int]func()
}

func (a *at) Err() error {
	a.checks++
	if f := a.do[a.checks]; f != nil {
		f()
	}
	return a.Context.Err()
}

func TestMeasureStopsWithItsContext(t *testing.T) {
	root := t.TempDir()
	for i := range 10 {
		require.NoError(t, os.Mkdir(filepath.Join(root, fmt.Sprint(i)), 0o750))
	}
	before := openDescriptors(t)
	ctx, cancel := context.WithCancel(t.Context())
	counted := &at{Context: ctx, do: map[int]func(){5: cancel}}
	_, err := walkTree(counted, root)
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, 5, counted.checks)
	assert.Equal(t, before, openDescriptors(t))
}

// TestMeasureWhileTheTreeChanges removes and replaces directories between the moment when they are counted and the
// moment when they are entered.
func TestMeasureWhileTheTreeChanges(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"gone", "file", "link"} {
		write(t, filepath.Join(root, name, "below"), 1)
	}
	outside := t.TempDir()
	write(t, filepath.Join(outside, "secret"), 1)
	ctx := &at{Context: t.Context(), do: map[int]func(){2: func() { // the root has been read
		for _, name := range []string{"gone", "file", "link"} {
			require.NoError(t, os.RemoveAll(filepath.Join(root, name)))
		}
		write(t, filepath.Join(root, "file"), 1)
		require.NoError(t, os.Symlink(outside, filepath.Join(root, "link")))
	}}}
	got, err := walkTree(ctx, root)
	require.NoError(t, err)
	assert.EqualValues(t, 4, got.Inodes, "what was there when it was read; nothing below, nothing outside")
}

// TestMeasureOfATreeThatIsMovedAway moves a directory out of the tree while the walk is deep below it: the walk must
// not go on with what is in the other place.
func TestMeasureOfATreeThatIsMovedAway(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	elements := []string{root}
	for range maxOpen + 5 {
		elements = append(elements, "d")
	}
	deep := filepath.Join(elements...)
	require.NoError(t, os.MkdirAll(deep, 0o750))
	before := openDescriptors(t)
	ctx := &at{Context: t.Context(), do: map[int]func(){2*(maxOpen+6) - 1: func() { // at the bottom
		require.NoError(t, os.Rename(filepath.Join(root, "d", "d"), filepath.Join(outside, "d")))
	}}}
	_, err := walkTree(ctx, root)
	require.ErrorIs(t, err, ErrChanged)
	assert.Equal(t, before, openDescriptors(t))
}

func TestMeasureOfADirectoryThatMayNotBeRead(t *testing.T) {
	root := t.TempDir()
	closed := filepath.Join(root, "a", "closed")
	write(t, filepath.Join(closed, "file"), 1)
	require.NoError(t, os.Chmod(closed, 0))
	defer func() { require.NoError(t, os.Chmod(closed, 0o700)) }()

	var err error
	asOrdinaryUser(t, func() { _, err = walkTree(t.Context(), root) })
	require.ErrorIs(t, err, fs.ErrPermission)
	var path *fs.PathError
	require.ErrorAs(t, err, &path)
	assert.Equal(t, closed, path.Path)
}

// asOrdinaryUser calls f on a thread that may not read what its user may not read, as root may.
func asOrdinaryUser(t *testing.T, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var had [2]unix.CapUserData
	require.NoError(t, unix.Capget(&header, &had[0]))
	few := had
	few[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
	require.NoError(t, unix.Capset(&header, &few[0]))
	f()
	require.NoError(t, unix.Capset(&header, &had[0]))
}
