package usage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/treewalk"
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

	want := expected(t, root)
	before := openDescriptors(t)
	for _, workers := range []int{0, 1, 3, 16} {
		got, err := walk(t.Context(), root, treewalk.Options{Workers: workers})
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	got, err := Measure(t.Context(), root)
	require.NoError(t, err)
	assert.Equal(t, want, got)
	assert.EqualValues(t, 1+3+3*400+2+1+2+1, got.Inodes)
	assert.Equal(t, before, openDescriptors(t))
}

// TestMeasureAgreesWithDu holds that the answer is the one that everybody knows.
func TestMeasureAgreesWithDu(t *testing.T) {
	root := t.TempDir()
	makeTree(t, root, 2000, 100)
	require.NoError(t, os.Truncate(filepath.Join(root, "dir0", "file-000001.dat"), 1<<30))
	out, err := exec.CommandContext(t.Context(), "du", "-s", "-B512", root).Output()
	require.NoError(t, err)
	blocks, err := strconv.ParseInt(strings.Fields(string(out))[0], 10, 64)
	require.NoError(t, err)
	got, err := Measure(t.Context(), root)
	require.NoError(t, err)
	assert.Equal(t, blocks*512, got.Bytes)
}

// TestMeasureHardLinksOnce links files to each other in many directories, so that several workers meet each of them.
func TestMeasureHardLinksOnce(t *testing.T) {
	root := t.TempDir()
	const files, dirs = 200, 30
	for i := range files {
		write(t, filepath.Join(root, "a", fmt.Sprint(i)), i*100)
	}
	write(t, filepath.Join(root, "linked-from-outside"), 1<<20)
	require.NoError(t, os.Link(filepath.Join(root, "linked-from-outside"), filepath.Join(t.TempDir(), "outside")))
	one, err := Measure(t.Context(), root)
	require.NoError(t, err)
	require.Equal(t, expected(t, root), one)
	for d := range dirs {
		dir := filepath.Join(root, "b", fmt.Sprint(d%3), fmt.Sprint(d))
		require.NoError(t, os.MkdirAll(dir, 0o750))
		for i := range files {
			require.NoError(t, os.Link(filepath.Join(root, "a", fmt.Sprint(i)), filepath.Join(dir, fmt.Sprint(i))))
		}
	}
	want := expected(t, root)
	assert.Equal(t, want.Inodes, one.Inodes+1+3+dirs)
	for range 10 {
		linked, err := walk(t.Context(), root, treewalk.Options{Workers: 8})
		require.NoError(t, err)
		require.Equal(t, want, linked)
	}
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

	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	got, err = Measure(t.Context(), fifo)
	require.NoError(t, err)
	assert.EqualValues(t, 1, got.Inodes, "Measure does not wait for a writer")

	for name, want := range map[string]error{"missing": fs.ErrNotExist, "file/below": unix.ENOTDIR} {
		_, err = Measure(t.Context(), filepath.Join(dir, name))
		require.ErrorIs(t, err, want)
		var path *fs.PathError
		require.ErrorAs(t, err, &path)
		assert.Equal(t, filepath.Join(dir, name), path.Path)
	}
}

// openDescriptors counts what is open in the trees of the tests. What else a process has open may change at any time.
func openDescriptors(t *testing.T) (open int) {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	for _, link := range links {
		// The name of a directory may be too long to be told.
		path, err := os.Readlink(link)
		if strings.HasPrefix(path, os.TempDir()) || errors.Is(err, unix.ENAMETOOLONG) {
			open++
		}
	}
	return open
}

func TestMeasureWithAContextThatHasEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Measure(ctx, t.TempDir())
	require.ErrorIs(t, err, context.Canceled)
	_, err = FS(ctx, t.TempDir(), Expect{})
	require.ErrorIs(t, err, context.Canceled)
}

func TestMeasureOfADirectoryThatMayNotBeRead(t *testing.T) {
	root := t.TempDir()
	closed := filepath.Join(root, "a", "closed")
	write(t, filepath.Join(closed, "file"), 1)
	require.NoError(t, os.Chmod(closed, 0))
	defer func() { require.NoError(t, os.Chmod(closed, 0o700)) }()

	var err error
	asOrdinaryUser(t, func() {
		// One worker is the thread that may not; more would be others that may.
		_, err = walk(t.Context(), root, treewalk.Options{Workers: 1})
	})
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
