package safepath

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// ways are the ways in which everything is done: with all system calls, and with all fall-backs.
var ways = map[string]mount.Feature{"openat2": 0, "elements": mount.FeatureOpenat2 | mount.FeatureStatxMountRoot}

// inEachWay runs a test in each way, and checks that no descriptor is left open. What is tested removes and makes files
// beside links that lead to everywhere, and may be wrong: it runs only where nothing but the directory of the tests can be
// written to.
func inEachWay(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	mounttest.RequireMounts(t)
	for name, without := range ways {
		t.Run(name, func(t *testing.T) {
			before := openFiles(t)
			t.Run("", func(t *testing.T) { test(t, newWorld(t, without)) })
			require.ElementsMatch(t, before, openFiles(t), "descriptors were left open")
		})
	}
}

// openFiles returns what the process has open of what the tests have made.
func openFiles(t *testing.T) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	var files []string
	for _, link := range links {
		if file, err := os.Readlink(link); err == nil && strings.HasPrefix(file, os.TempDir()) {
			files = append(files, file)
		}
	}
	return files
}

// world is a root with a canary beside it.
type world struct {
	t       *testing.T
	without mount.Feature
	mounter *mount.Mounter
	dir     string // the root
	outside string // a directory beside it, which holds the file canary
	root    *Root
}

func newWorld(t *testing.T, without mount.Feature) *world {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	w := &world{
		t: t, without: without, mounter: mount.New(mount.Options{}),
		dir: filepath.Join(base, "root"), outside: filepath.Join(base, "outside"),
	}
	for _, dir := range []string{w.dir, w.outside} {
		require.NoError(t, os.Mkdir(dir, 0o755))
	}
	w.write(filepath.Join(w.outside, "canary"))
	w.root = w.open(w.dir)
	return w
}

// open opens a root, until the end of the test.
func (w *world) open(dir string) *Root {
	w.t.Helper()
	root, err := Open(w.t.Context(), dir, Options{Mounter: w.mounter, Without: w.without})
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = root.Close() })
	return root
}

// path is the host path of a name.
func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) mkdir(names ...string) {
	w.t.Helper()
	for _, name := range names {
		require.NoError(w.t, os.MkdirAll(w.path(name), 0o755))
	}
}

func (w *world) write(path string) {
	w.t.Helper()
	require.NoError(w.t, os.WriteFile(path, []byte("alive"), 0o644))
}

func (w *world) link(to, name string) {
	w.t.Helper()
	require.NoError(w.t, os.Symlink(to, w.path(name)))
}

// isUnharmed checks that what lies beside the root is as it was.
func (w *world) isUnharmed() {
	w.t.Helper()
	entries, err := os.ReadDir(w.outside)
	require.NoError(w.t, err)
	require.Len(w.t, entries, 1, "something was made outside of the root")
	content, err := os.ReadFile(filepath.Join(w.outside, "canary"))
	require.NoError(w.t, err)
	require.Equal(w.t, "alive", string(content))
}

// mount mounts until the end of the test.
func (w *world) mount(request mount.Request) {
	w.t.Helper()
	mounttest.RequireMounts(w.t)
	require.NoError(w.t, w.mounter.Mount(w.t.Context(), request))
	w.t.Cleanup(func() { _ = unix.Unmount(request.Target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
}

func (w *world) bind(source, target string, options ...string) {
	w.t.Helper()
	w.mount(mount.Request{Source: source, Target: target, Options: append(options, "bind")})
}

func (w *world) tmpfs(target string, options ...string) {
	w.t.Helper()
	w.mount(mount.Request{Source: "memory", Target: target, FSType: "tmpfs", Options: options})
}

func (w *world) unmount(target string) {
	w.t.Helper()
	require.NoError(w.t, w.mounter.Unmount(w.t.Context(), target, mount.UnmountOptions{}))
}

// tree is the root as the calls use it, without a goroutine for each.
func (w *world) tree() *tree {
	w.t.Helper()
	fd, err := unix.Open(w.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { closeFD(fd) })
	return &tree{fd: fd, without: w.without}
}

// minTries is how often what is raced against is done at least.
const minTries = 100

// race exchanges two names as fast as it can, for as many times as each way has of tries and until try was called often
// enough, and calls try until that is done. It returns how often the names were really exchanged.
func (w *world) race(one, other string, try func()) (swaps int) {
	one, other = w.path(one), w.path(other)
	var isDone atomic.Bool
	var tried atomic.Int64
	var ended sync.WaitGroup
	ended.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer isDone.Store(true)
		for i := 0; (i < tries/len(ways) || tried.Load() < minTries) && w.t.Context().Err() == nil; i++ {
			if unix.Renameat2(unix.AT_FDCWD, one, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE) == nil {
				swaps++
			}
		}
	})
	defer ended.Wait()
	defer tried.Store(minTries) // when the test fails
	for !isDone.Load() {
		try()
		tried.Add(1)
	}
	ended.Wait()
	return swaps
}

func inodeOf(t *testing.T, path string) uint64 {
	t.Helper()
	var stat unix.Stat_t
	require.NoError(t, unix.Lstat(path, &stat))
	return stat.Ino
}

func inodeOfFD(t *testing.T, fd int) uint64 {
	t.Helper()
	var stat unix.Stat_t
	require.NoError(t, unix.Fstat(fd, &stat))
	return stat.Ino
}
