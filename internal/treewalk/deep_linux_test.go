package treewalk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount/mounttest"
)

// counter is a visitor that only counts.
type counter struct{ visits, fails atomic.Int64 }

func (c *counter) Visit(*Entry) Verdict { c.visits.Add(1); return Next }
func (c *counter) Fail(error) Verdict   { c.fails.Add(1); return Next }

func tmpfs(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", root, "tmpfs", 0, ""))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(root, 0)) })
	return root
}

// makeDeep makes directories in each other, each with a sibling that comes before it and one that comes after it.
func makeDeep(t *testing.T, root, name string, depth int) {
	t.Helper()
	makeChain(t, root, depth, "a", name, "z")
}

// makeChain makes the named directories, and in the one in the middle the same again, and so on.
func makeChain(t *testing.T, root string, depth int, names ...string) {
	t.Helper()
	const levels = 10 // for which one directory is opened
	down := names[len(names)/2] + "/"
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	for made := 0; made < depth; {
		path := ""
		for range min(levels, depth-made) {
			for _, name := range names {
				if err := unix.Mkdirat(fd, path+name, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			path += down
			made++
		}
		below, err := unix.Openat(fd, path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		closeFD(fd)
		fd = below
	}
	closeFD(fd)
}

// openDescriptors counts the open files in the trees of the tests. The number of other open files may change at any time.
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

// withDescriptors calls f while this process can open only a number of further files.
func withDescriptors(t *testing.T, more int, f func()) {
	t.Helper()
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	used, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	few := limit
	few.Cur = uint64(len(used) + more)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }()
	f()
}

func walkCounting(t *testing.T, root string, options Options) (c *counter, err error) {
	t.Helper()
	tree, err := Open(root, options)
	require.NoError(t, err)
	defer tree.Close()
	c = &counter{}
	return c, tree.Walk(t.Context(), func() Visitor { return c })
}

// TestDepthCostsNoDescriptors walks the worst trees that a workload can make: thousands of levels with entries to visit on the way
// back up, and names that together are longer than any path.
func TestDepthCostsNoDescriptors(t *testing.T) {
	mounttest.RequireMounts(t)
	for _, c := range []struct {
		name    string
		depth   int
		options Options
	}{
		{"d", 10_000, Options{}},
		{"d", 2000, Options{Workers: 1}},
		{strings.Repeat("n", 250), 1000, Options{}},
		{"d", 1000, Options{Workers: 1, MaxOpen: 4, Without: FeatureOpenat2}},
		{"d", 300, Options{Workers: 3, Without: FeatureOpenat2 | FeatureMountRoot}},
	} {
		root := tmpfs(t)
		makeDeep(t, root, c.name, c.depth)
		before := openDescriptors(t)
		withDescriptors(t, defaultMaxOpen+64, func() {
			got, err := walkCounting(t, root, c.options)
			require.NoError(t, err)
			assert.EqualValues(t, 3*c.depth, got.visits.Load())
			assert.Zero(t, got.fails.Load())
		})
		assert.Equal(t, before, openDescriptors(t))
	}
}

func TestHundredThousandLevels(t *testing.T) {
	mounttest.RequireMounts(t)
	root := tmpfs(t)
	makeChain(t, root, 100_000, "d")
	withDescriptors(t, 64, func() {
		got, err := walkCounting(t, root, Options{})
		require.NoError(t, err)
		assert.EqualValues(t, 100_000, got.visits.Load())
		assert.Zero(t, got.fails.Load())
	})
}

// TestWidthCostsNoDescriptors walks a tree in which each directory has many others. Many wait at the same time.
func TestWidthCostsNoDescriptors(t *testing.T) {
	root := t.TempDir()
	for i := range 20 {
		for j := range 20 {
			require.NoError(t, os.MkdirAll(filepath.Join(root, fmt.Sprint(i), fmt.Sprint(j), "x"), 0o755))
			require.NoError(t, os.Mkdir(filepath.Join(root, fmt.Sprint(i), fmt.Sprint(j), "y"), 0o755))
		}
	}
	before := openDescriptors(t)
	for _, workers := range []int{1, 4} {
		withDescriptors(t, 24, func() {
			got, err := walkCounting(t, root, Options{MaxOpen: 3, Workers: workers})
			require.NoError(t, err)
			assert.EqualValues(t, 20+400+800, got.visits.Load())
			assert.Zero(t, got.fails.Load())
		})
	}
	assert.Equal(t, before, openDescriptors(t))
}

// TestProcessWithoutDescriptorsGoesOnWithFewer walks where fewer descriptors are left than the walk may have.
func TestProcessWithoutDescriptorsGoesOnWithFewer(t *testing.T) {
	mounttest.RequireMounts(t)
	root := tmpfs(t)
	makeDeep(t, root, "d", 400)
	withDescriptors(t, 12, func() {
		got, err := walkCounting(t, root, Options{Workers: 1})
		require.NoError(t, err)
		assert.EqualValues(t, 1200, got.visits.Load())
		assert.Zero(t, got.fails.Load())
	})
}

// TestDirectoryThatIsMovedAwayIsAFailure moves a directory away that the walk has closed to save descriptors while it is deep
// below it. The walk cannot visit the rest of the directory, and fails.
func TestDirectoryThatIsMovedAwayIsAFailure(t *testing.T) {
	for _, without := range []Feature{0, FeatureOpenat2} {
		root, outside := t.TempDir(), t.TempDir()
		makeDeep(t, root, "d", 60)
		bottom := filepath.Join(root, strings.Repeat("/d", 60))
		moved := false
		r := &recorder{}
		r.visit = func(e *Entry) Verdict {
			if e.Path() == bottom && !moved {
				moved = true
				require.NoError(t, os.Rename(filepath.Join(root, "d"), filepath.Join(outside, "d")))
				require.NoError(t, os.Mkdir(filepath.Join(root, "d"), 0o755))
				require.NoError(t, os.Mkdir(filepath.Join(root, "d", "d"), 0o755))
			}
			return Next
		}
		require.NoError(t, r.walk(t, root, Options{Workers: 1, MaxOpen: 2, Without: without}))
		require.True(t, moved)
		require.NotEmpty(t, r.fails)
		for _, err := range r.fails {
			require.ErrorIs(t, err, ErrMoved)
			var path *fs.PathError
			require.ErrorAs(t, err, &path)
			assert.True(t, strings.HasPrefix(path.Path, root+"/"), path.Path)
		}
	}
}

// TestWhatTakesThePlaceOfAClosedDirectoryIsNotTakenForIt replaces a closed directory by a link to another tree of the same shape,
// and by that tree itself. The walk must not visit the other tree.
func TestWhatTakesThePlaceOfAClosedDirectoryIsNotTakenForIt(t *testing.T) {
	for _, c := range []struct {
		without Feature
		put     func(oldname, newname string) error
	}{{0, os.Symlink}, {FeatureOpenat2, os.Symlink}, {0, os.Rename}, {FeatureOpenat2, os.Rename}} {
		root, outside := t.TempDir(), t.TempDir()
		makeDeep(t, root, "d", 60)
		makeDeep(t, outside, "d", 60)
		require.NoError(t, os.WriteFile(filepath.Join(outside, "d", "a", "canary"), nil, 0o600))
		bottom := filepath.Join(root, strings.Repeat("/d", 60))
		r := &recorder{}
		swapped := false
		r.visit = func(e *Entry) Verdict {
			if e.Path() == bottom && !swapped {
				swapped = true
				require.NoError(t, os.Rename(filepath.Join(root, "d"), filepath.Join(root, "elsewhere")))
				require.NoError(t, c.put(filepath.Join(outside, "d"), filepath.Join(root, "d")))
			}
			return Next
		}
		require.NoError(t, r.walk(t, root, Options{Workers: 1, MaxOpen: 2, Without: c.without}))
		require.True(t, swapped)
		require.NotEmpty(t, r.fails)
		for _, err := range r.fails {
			require.ErrorIs(t, err, ErrMoved)
		}
		for _, path := range r.paths {
			assert.NotContains(t, path, "canary")
		}
	}
}

func TestFlatDirectoryIsShared(t *testing.T) {
	root := t.TempDir()
	const files = 2000
	for i := range files {
		require.NoError(t, os.WriteFile(filepath.Join(root, fmt.Sprint("a-file-with-a-name-", i)), nil, 0o600))
	}
	tree, err := Open(root, Options{Workers: 4})
	require.NoError(t, err)
	defer tree.Close()
	var visitors []*counter
	// The first to see a file waits until another one does, so that one worker alone could not end.
	met := make(chan struct{})
	var seen atomic.Int64
	require.NoError(t, tree.Walk(t.Context(), func() Visitor {
		c := &counter{}
		visitors = append(visitors, c)
		return &meeting{counter: c, seen: &seen, met: met, ctx: t.Context().Done()}
	}))
	total, busy := int64(0), 0
	for _, v := range visitors {
		total += v.visits.Load()
		if v.visits.Load() > 0 {
			busy++
		}
	}
	assert.EqualValues(t, files, total)
	assert.Greater(t, busy, 1)
}

// meeting waits in its first visit until two workers are in theirs.
type meeting struct {
	*counter

	seen *atomic.Int64
	met  chan struct{}
	ctx  <-chan struct{}
}

func (m *meeting) Visit(e *Entry) Verdict {
	if m.visits.Load() == 0 && m.seen.Add(1) == 2 {
		close(m.met)
	}
	if m.visits.Load() == 0 {
		select {
		case <-m.met:
		case <-m.ctx:
		}
	}
	return m.counter.Visit(e)
}

func TestVisitorsEndTheWalk(t *testing.T) {
	root := t.TempDir()
	for i := range 100 {
		require.NoError(t, os.MkdirAll(filepath.Join(root, fmt.Sprint(i), "below"), 0o755))
	}
	before := openDescriptors(t)
	r := &recorder{visit: func(*Entry) Verdict { return Stop }}
	require.ErrorIs(t, r.walk(t, root, Options{Workers: 1}), ErrStopped)
	assert.Len(t, r.paths, 1)
	r = &recorder{visit: func(*Entry) Verdict { return Prune }}
	require.NoError(t, r.walk(t, root, Options{}))
	assert.Len(t, r.paths, 100)
	assert.Equal(t, before, openDescriptors(t))
}

func TestContextEndsTheWalk(t *testing.T) {
	root := t.TempDir()
	for i := range 100 {
		require.NoError(t, os.MkdirAll(filepath.Join(root, fmt.Sprint(i), "below"), 0o755))
	}
	ctx, cancel := context.WithCancel(t.Context())
	tree, err := Open(root, Options{Workers: 3})
	require.NoError(t, err)
	defer tree.Close()
	r := &recorder{}
	r.visit = func(e *Entry) Verdict {
		cancel()
		for !e.worker.pool.stopped.Load() {
			runtime.Gosched()
		}
		return Next
	}
	require.ErrorIs(t, tree.Walk(ctx, func() Visitor { return r }), context.Canceled)
	assert.LessOrEqual(t, len(r.paths), 3, "one for each worker")
}

func TestFailuresNameTheirPath(t *testing.T) {
	root := t.TempDir()
	closed := filepath.Join(root, "a", "closed")
	require.NoError(t, os.MkdirAll(closed, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "other"), nil, 0o600))
	require.NoError(t, os.Chmod(closed, 0))
	defer func() { require.NoError(t, os.Chmod(closed, 0o700)) }()
	r := &recorder{}
	asOrdinaryUser(t, func() { require.NoError(t, r.walk(t, root, Options{Workers: 1})) })
	require.Len(t, r.fails, 1)
	assert.Equal(t, &fs.PathError{Op: "open", Path: closed, Err: unix.EACCES}, r.fails[0])
	assert.Len(t, r.paths, 3)
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

func TestRootIsNotFollowedAndNeedNotBeADirectory(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o640))
	require.NoError(t, os.Symlink(root, filepath.Join(root, "link")))
	for name, kind := range map[string]uint16{"file": unix.S_IFREG, "link": unix.S_IFLNK} {
		tree, err := Open(filepath.Join(root, name), Options{})
		require.NoError(t, err)
		assert.Equal(t, kind, tree.Stat().Mode&unix.S_IFMT)
		c := &counter{}
		require.NoError(t, tree.Walk(t.Context(), func() Visitor { return c }))
		assert.Zero(t, c.visits.Load())
		tree.Close()
	}
	_, err := Open(filepath.Join(root, "missing"), Options{})
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// TestPinHoldsWhatWasSeen replaces a name after its entry was pinned: the descriptor still has the pinned inode.
func TestPinHoldsWhatWasSeen(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(root, "file"), []byte("12345"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(root, "gone"), nil, 0o600))
	r := &recorder{}
	tree, err := Open(root, Options{Workers: 1, Mask: unix.STATX_SIZE})
	require.NoError(t, err)
	defer tree.Close()
	r.visit = func(e *Entry) Verdict {
		if filepath.Base(e.Path()) == "gone" {
			require.NoError(t, os.Remove(e.Path()))
			if e.FD() < 0 { // not when the one before has been pinned
				require.ErrorIs(t, e.Pin(), fs.ErrNotExist)
			}
			return Next
		}
		require.NoError(t, e.Pin())
		require.NoError(t, os.Rename(e.Path(), filepath.Join(t.TempDir(), "away")))
		require.NoError(t, os.Symlink("/etc/passwd", e.Path()))
		require.NoError(t, e.Pin())
		var st unix.Stat_t
		require.NoError(t, unix.Fstat(e.FD(), &st))
		assert.EqualValues(t, 5, st.Size)
		assert.Equal(t, st.Ino, e.Stat.Ino)
		return Next
	}
	require.NoError(t, tree.Walk(t.Context(), func() Visitor { return r }))
	assert.Empty(t, r.fails)
}

func TestPathsOfMessages(t *testing.T) {
	tree := &Tree{path: "/root"}
	at := &dir{}
	assert.Equal(t, "/root", tree.pathOf(at, nil))
	assert.Equal(t, "/root/x", tree.pathOf(at, []byte("x\x00rubbish")))
	for range 10_000 {
		at = &dir{parent: at, name: []byte("d\x00")}
	}
	path := tree.pathOf(at, []byte("x\x00"))
	assert.True(t, strings.HasPrefix(path, "/root/.../d/"), path[:20])
	assert.True(t, strings.HasSuffix(path, "/d/x"))
	assert.Less(t, len(path), 2*maxPath)
}

func TestMissingSystemCallsAreFoundOut(t *testing.T) {
	fd, err := unix.Open(t.TempDir(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	remote, err := isRemote(fd)
	require.NoError(t, err)
	_ = remote // whatever the machine's temporary files lie on
	proc, err := unix.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(proc)
	remote, err = isRemote(proc)
	require.NoError(t, err)
	assert.True(t, remote, "it is not among those that are known to be local")
}
