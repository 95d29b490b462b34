package mount_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// TestMountThatCannotBeLookedAtIsFoundInTheTable looks at a mount whose directory refuses to be searched, as a mount of
// a server that has gone refuses to be looked at.
func TestMountThatCannotBeLookedAtIsFoundInTheTable(t *testing.T) {
	mounttest.RequireRoot(t)
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		parent := filepath.Join(t.TempDir(), "parent")
		target, other := filepath.Join(parent, "target"), filepath.Join(parent, "other")
		mountTmpfs(t, m, target)
		require.NoError(t, os.Mkdir(other, 0o755))
		for dir := parent; dir != filepath.Dir(os.TempDir()); dir = filepath.Dir(dir) {
			require.NoError(t, os.Chmod(dir, 0o755)) // other users are to pass
		}
		require.NoError(t, os.Chmod(parent, 0))
		asNobody(t, func() {
			is, err := m.IsMountPointHere(t.Context(), target)
			require.NoError(t, err)
			assert.True(t, is)
			_, err = m.IsMountPointHere(t.Context(), other)
			require.ErrorIs(t, err, unix.EACCES, "what is not in the table keeps its error")
		})
	})
}

// asNobody runs do on a thread with the file permissions of the user nobody.
func asNobody(t *testing.T, do func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const nobody = 65534
	require.NoError(t, unix.Setfsuid(nobody))
	defer func() { require.NoError(t, unix.Setfsuid(0)) }()
	do()
}

// TestPathBeneathWhatIsMissingIsNoMountPoint looks beneath directories that are not there, and beneath a file.
func TestPathBeneathWhatIsMissingIsNoMountPoint(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
		for _, missing := range []string{"a", "a/b", "a/b/c/d"} {
			is, err := m.IsMountPointHere(t.Context(), filepath.Join(dir, missing))
			require.ErrorIs(t, err, unix.ENOENT, missing)
			assert.False(t, is, missing)
		}
		is, err := m.IsMountPointHere(t.Context(), filepath.Join(dir, "file", "a"))
		require.ErrorIs(t, err, unix.ENOTDIR)
		assert.False(t, is)
	})
}

// TestPathBeneathWhatIsMissingReadsNoTable counts the reads of the thread that looks.
func TestPathBeneathWhatIsMissingReadsNoTable(t *testing.T) {
	m, dir := mount.New(mount.Options{}), t.TempDir()
	look := func(name string) func() {
		return func() {
			_, err := m.IsMountPointHere(t.Context(), filepath.Join(dir, name))
			assert.ErrorIs(t, err, unix.ENOENT)
		}
	}
	look("warm/up")()
	nothing := readsOf(t, func() {})
	assert.Equal(t, nothing, readsOf(t, look("a/b")), "beneath a directory that is not there")
	assert.Equal(t, nothing, readsOf(t, look("a/b/c/d")), "beneath several")
	table := readsOf(t, func() {
		_, err := os.ReadFile("/proc/self/mountinfo")
		assert.NoError(t, err)
	})
	assert.Greater(t, table, nothing, "this is what a look at the table would be seen by")
}

// readsOf returns how many read system calls this thread makes in do, and to count them.
func readsOf(t *testing.T, do func()) int {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadReads(t)
	do()
	return threadReads(t) - before
}

// threadReads returns how many read system calls this thread has made. It is itself always one more, however many digits the
// counters have.
func threadReads(t *testing.T) int {
	t.Helper()
	fd, err := unix.Open("/proc/thread-self/io", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer func() { assert.NoError(t, unix.Close(fd)) }()
	content := make([]byte, 4096)
	n, err := unix.Read(fd, content)
	require.NoError(t, err)
	var reads int
	_, err = fmt.Sscanf(string(content[:n]), "rchar: %d\nwchar: %d\nsyscr: %d", new(int), new(int), &reads)
	require.NoError(t, err)
	return reads
}
