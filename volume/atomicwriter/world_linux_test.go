package atomicwriter

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount/mounttest"
)

func TestMain(m *testing.M) { mounttest.Main(m) }

type payload = map[string]FileProjection

func newWriter(t *testing.T, dir string, o Options) *AtomicWriter {
	t.Helper()
	w, err := New(dir, o)
	require.NoError(t, err)
	return w
}

func mustWrite(t *testing.T, w *AtomicWriter, p payload) Result {
	t.Helper()
	result, err := w.Write(t.Context(), p)
	require.NoError(t, err)
	requireShows(t, w.Dir(), p)
	return result
}

// requireShows holds that dir shows p as Kubernetes would, and that nothing of a writer's lies there besides.
func requireShows(t *testing.T, dir string, p payload) {
	t.Helper()
	s, err := newSet(p)
	require.NoError(t, err)
	current := published(dir)
	require.True(t, isSetName(current), "%q", current)
	requireSet(t, filepath.Join(dir, current), s)

	want := []string{dataLink, current}
	for _, v := range s.visible() {
		want = append(want, v.name)
		target, err := os.Readlink(filepath.Join(dir, v.name))
		require.NoError(t, err)
		require.Equal(t, "..data/"+v.name, target)
		if v.owner != nil {
			require.EqualValues(t, *v.owner, statOf(t, filepath.Join(dir, v.name)).Uid)
		}
	}
	slices.Sort(want)
	require.Equal(t, want, ownNames(t, dir))
	for name, f := range p {
		content, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, string(f.Data), string(content))
	}
}

// requireSet holds that a set has the files of s and no others.
func requireSet(t *testing.T, root string, s set) {
	t.Helper()
	var files []string
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		st := statOf(t, path)
		name, err := filepath.Rel(root, path)
		require.NoError(t, err)
		if d.IsDir() {
			assert.EqualValues(t, dirMode, st.Mode&0o777, path)
			return nil
		}
		files = append(files, name)
		f, ok := s.find(name)
		require.True(t, ok, "%q", name)
		require.Equal(t, unix.S_IFREG|uint32(f.Mode), st.Mode, path)
		if f.FsUser != nil {
			require.EqualValues(t, *f.FsUser, st.Uid, path)
		}
		return nil
	}))
	require.Len(t, files, len(s.files))
}

func statOf(t *testing.T, path string) *syscall.Stat_t {
	t.Helper()
	info, err := os.Lstat(path)
	require.NoError(t, err)
	st, ok := info.Sys().(*syscall.Stat_t)
	require.True(t, ok)
	return st
}

// published returns where "..data" leads to.
func published(dir string) string {
	target, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil {
		return ""
	}
	return target
}

// ownNames lists the links to "..data", and whatever begins with "..".
func ownNames(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	for _, name := range list(t, dir) {
		target, _ := os.Readlink(filepath.Join(dir, name))
		if strings.HasPrefix(name, "..") || strings.HasPrefix(target, "..data/") {
			names = append(names, name)
		}
	}
	return names
}

func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// picture is all that can be seen of a tree, without access times.
func picture(t *testing.T, root string) map[string]string {
	t.Helper()
	seen := make(map[string]string)
	require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := os.Lstat(path)
		require.NoError(t, err)
		st := statOf(t, path)
		what := info.Mode().String() + " " + info.ModTime().String()
		what += " " + filepath.Join("owner", string(rune('0'+st.Uid%10)), string(rune('0'+st.Gid%10)))
		if info.Mode().IsRegular() {
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			what += " " + string(content)
		}
		seen[path] = what
		return nil
	}))
	return seen
}

// canary returns a tree outside of every volume, and what it looks like.
func canary(t *testing.T) (string, map[string]string) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "canary")
	for _, name := range []string{"a", "etc/passwd", "dir/f", "dir/sub/deep"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte("sings"), 0o600))
	}
	return root, picture(t, root)
}

func descriptors(t *testing.T) int {
	t.Helper()
	return len(list(t, "/proc/self/fd"))
}

func mountTmpfs(t *testing.T, options string) string {
	t.Helper()
	mounttest.RequireMounts(t)
	dir := t.TempDir()
	require.NoError(t, unix.Mount("atomicwriter", dir, "tmpfs", 0, options))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, 0)) })
	return dir
}
