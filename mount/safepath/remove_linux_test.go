package safepath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

func TestRemoveRemovesOneThing(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("a/full/x", "a/empty")
		w.write(w.path("a/file"))
		w.link(w.outside, "a/link")
		require.NoError(t, unix.Mkfifo(w.path("a/fifo"), 0o600))
		for _, name := range []string{"a/empty", "a/file", "a/link", "a/fifo"} {
			require.NoError(t, w.root.Remove(t.Context(), name), name)
			require.ErrorIs(t, w.root.Remove(t.Context(), name), unix.ENOENT, name)
		}
		require.ErrorIs(t, w.root.Remove(t.Context(), "a/full"), unix.ENOTEMPTY)
		assert.DirExists(t, w.path("a/full/x"))
		w.isUnharmed()
	})
}

func TestRemoveAllRemovesEverythingAndFollowsNoLink(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("top/a/b/c", "beside")
		w.write(w.path("beside/file"))
		w.link(w.outside, "top/to-directory")
		w.link(filepath.Join(w.outside, "canary"), "top/to-file")
		w.link("../../beside", "top/a/up")
		w.link("/proc/self/cwd/nowhere", "top/a/b/magic")
		w.link("nowhere", "top/dangling")
		require.NoError(t, os.Link(filepath.Join(w.outside, "canary"), w.path("top/hard")))
		require.NoError(t, unix.Mkfifo(w.path("top/fifo"), 0o600))
		for i := range 3 * batch {
			w.write(w.path("top/a/" + strconv.Itoa(i)))
		}
		require.NoError(t, w.root.RemoveAll(t.Context(), "top"))
		assert.NoFileExists(t, w.path("top"))
		assert.FileExists(t, w.path("beside/file"))
		require.NoError(t, w.root.RemoveAll(t.Context(), "top"), "what is gone is no error")
		require.NoError(t, w.root.RemoveAll(t.Context(), "top/a/b"), "nor what is below")
		require.NoError(t, w.root.RemoveAll(t.Context(), "beside/file"))
		w.isUnharmed()
	})
}

func TestRemoveContentLeavesTheRootAndWhatIsMounted(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("a/b/c", "d")
		w.write(w.path("file"))
		w.link(w.outside, "link")
		require.NoError(t, w.root.RemoveContent(t.Context()))
		entries, err := os.ReadDir(w.path(""))
		require.NoError(t, err)
		assert.Empty(t, entries)
		require.NoError(t, w.root.RemoveContent(t.Context()), "nothing is left to be removed")
		w.isUnharmed()
	})
}

// TestContentWithAMountInItStaysWhole: also what lies beside the mount, and would be met before it.
func TestContentWithAMountInItStaysWhole(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("a/b", "m/deep/memory", "z/b")
		w.write(w.path("a/file"))
		w.tmpfs(w.path("m/deep/memory"))
		require.ErrorIs(t, w.root.RemoveContent(t.Context()), ErrMounted)
		for _, name := range []string{"a/b", "m/deep/memory", "z/b"} {
			assert.DirExists(t, w.path(name))
		}
		assert.FileExists(t, w.path("a/file"))
		w.unmount(w.path("m/deep/memory"))

		w.tmpfs(w.path("a"))
		within, err := w.root.Sub(t.Context(), "a")
		if errors.Is(err, ErrMounted) {
			within, err = Open(t.Context(), w.path("a"), Options{Mounter: w.mounter})
		}
		require.NoError(t, err)
		w.write(w.path("a/memory"))
		require.NoError(t, within.RemoveContent(t.Context()), "the root itself may be a mount")
		assert.NoFileExists(t, w.path("a/memory"))
		require.NoError(t, within.Close())
		w.unmount(w.path("a"))
		assert.FileExists(t, w.path("a/file"))
		w.isUnharmed()
	})
}

func TestDepthOfATreeCostsNoDescriptors(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		w.deepTree("top", 3*maxOpen, 2)
		w.withFewDescriptors(2*maxOpen, func() {
			require.NoError(t, w.root.RemoveAll(t.Context(), "top"))
		})
		assert.NoFileExists(t, w.path("top"))
	})
}

// A path to the lowest directory is longer than the kernel takes.
func TestTreeDeeperThanAnyPathIsRemoved(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		w.deepTree("top", 60, 1, strings.Repeat("x", 200))
		require.NoError(t, w.root.RemoveAll(t.Context(), "top"))
		assert.NoFileExists(t, w.path("top"))
	})
}

// deepTree makes a chain of directories, each with so many full directories beside the one that goes down, whose names
// begin with prefix.
func (w *world) deepTree(name string, depth, width int, prefix ...string) {
	w.t.Helper()
	d := strings.Join(append(prefix, "d"), "")
	w.mkdir(name)
	fd, err := unix.Open(w.path(name), unix.O_PATH, 0)
	require.NoError(w.t, err)
	for range depth {
		for i := range width {
			require.NoError(w.t, unix.Mkdirat(fd, d+strconv.Itoa(i), 0o755))
			require.NoError(w.t, unix.Mkdirat(fd, d+strconv.Itoa(i)+"/x", 0o755))
		}
		next, err := unix.Openat(fd, d+"0", unix.O_PATH, 0)
		require.NoError(w.t, err)
		closeFD(fd)
		fd = next
	}
	closeFD(fd)
}

func (w *world) withFewDescriptors(n uint64, do func()) {
	w.t.Helper()
	var limit unix.Rlimit
	require.NoError(w.t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	low := limit
	low.Cur = n
	require.NoError(w.t, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
	defer func() { require.NoError(w.t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }()
	do()
}

// F1: os.RemoveAll empties what is mounted inside before it fails.
func TestNothingIsRemovedWhereSomethingIsMountedInside(t *testing.T) {
	mounttest.RequireMounts(t)
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("top/z/inside", "top/z/memory", "top/a")
		for i := range 32 {
			w.mkdir("top/beside" + strconv.Itoa(i)) // some of them come first in any order
		}
		w.write(w.path("top/z/file"))
		for _, mountIt := range []func(){
			func() { w.bind(w.outside, w.path("top/z/inside")) },
			func() { w.bind(filepath.Join(w.outside, "canary"), w.path("top/z/file")) },
			func() { w.tmpfs(w.path("top/z/memory")) },
			func() { w.bind(w.path("top/a"), w.path("top/z/inside")) },
		} {
			mountIt()
			require.ErrorIs(t, w.root.RemoveAll(t.Context(), "top"), ErrMounted)
			entries, err := os.ReadDir(w.path("top"))
			require.NoError(t, err)
			assert.Len(t, entries, 34, "nothing at all was removed")
			table, err := w.mounter.List(t.Context())
			require.NoError(t, err)
			w.unmount(table[len(table)-1].Path)
		}
		w.isUnharmed()
		require.NoError(t, w.root.RemoveAll(t.Context(), "top"))
		w.isUnharmed()
	})
}

// blind is a mounter that does not know the mount table, as if each mount had come a moment later.
type blind struct{ mount.Interface }

func (blind) List(ctx context.Context) ([]mount.MountPoint, error) { return nil, ctx.Err() }

func TestMountThatTheTableDoesNotShowYetIsNotEntered(t *testing.T) {
	mounttest.RequireMounts(t)
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("top/a/inside", "top/a/memory")
		w.write(w.path("top/a/file"))
		w.bind(w.outside, w.path("top/a/inside"))
		w.bind(filepath.Join(w.outside, "canary"), w.path("top/a/file"))
		w.tmpfs(w.path("top/a/memory"))
		w.write(w.path("top/a/memory/canary"))
		tree := w.tree()
		for _, name := range []string{"top", "top/a/inside", "top/a/file", "top/a/memory", "top/a/inside/canary", "top/a/memory/canary"} {
			require.ErrorIs(t, tree.removeAll(t.Context(), name, blind{}), ErrMounted, name)
			require.ErrorIs(t, tree.remove(t.Context(), "top/a/memory/canary"), ErrMounted, name)
		}
		_, err := tree.openDir(t.Context(), tree.fd, "top/a/inside")
		require.ErrorIs(t, err, ErrMounted)
		assert.FileExists(t, w.path("top/a/memory/canary"))
		w.isUnharmed()
	})
}

// startRemoval begins to remove the tree top, and goes on until so many levels are open.
func (w *world) startRemoval(levels int) *remover {
	w.t.Helper()
	tree := w.tree()
	r := &remover{tree: tree, at: tree.fd}
	w.t.Cleanup(r.close)
	require.NoError(w.t, r.enter(w.t.Context(), tree.fd, "top"))
	for len(r.levels) < levels {
		require.NoError(w.t, r.proceed(w.t.Context()))
	}
	return r
}

func (r *remover) finish(t *testing.T) error {
	t.Helper()
	for len(r.levels) > 0 {
		if err := r.proceed(t.Context()); err != nil {
			return err
		}
	}
	return nil
}

func TestMountThatAppearsWhileATreeIsRemovedStaysWhole(t *testing.T) {
	mounttest.RequireMounts(t)
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("top/a/b/c/d")
		r := w.startRemoval(3)
		assert.Equal(t, "top/a/b", r.where())
		w.bind(w.outside, w.path("top/a/b/c"))
		require.ErrorIs(t, r.finish(t), ErrMounted)
		assert.FileExists(t, w.path("top/a/b/c/canary"))
		w.isUnharmed()
	})
}

// What is mounted over a directory that is being emptied hides it; what is emptied is what was opened.
func TestMountOverADirectoryThatIsBeingEmptiedStaysWhole(t *testing.T) {
	mounttest.RequireMounts(t)
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("top/a/b/c/d")
		r := w.startRemoval(3)
		w.bind(w.outside, w.path("top/a"))
		require.ErrorIs(t, r.finish(t), ErrMounted)
		w.isUnharmed()
	})
}

// The way back up is by "..", which leads into what is mounted over the level above: here the very same directory, which
// device and inode do not tell apart.
func TestRemovalDoesNotGoUpIntoABindOfTheSameDirectory(t *testing.T) {
	mounttest.RequireMounts(t)
	inEachWay(t, func(t *testing.T, w *world) {
		w.deepTree("top", 2*maxOpen, 1)
		r := w.startRemoval(maxOpen + 10)
		level := w.path("top/d0/d0")
		w.bind(level, level)
		canary := filepath.Join(level, "canary")
		w.write(canary)
		require.ErrorIs(t, r.finish(t), ErrMounted)
		assert.FileExists(t, canary)
		w.unmount(level)
	})
}

// Another process removes the same tree at the same time.
func TestDirectoryThatAnotherProcessRemovesIsNoError(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("top/a/b", "top/c")
		r := w.startRemoval(2)
		require.NoError(t, os.RemoveAll(w.path("top")))
		require.NoError(t, r.finish(t))
		w.deepTree("top", 2*maxOpen, 1)
		r = w.startRemoval(maxOpen + 10)
		require.NoError(t, os.RemoveAll(w.path("top")))
		require.NoError(t, r.finish(t))
	})
}

// A directory is moved out of the root while its content is removed, so deep that the way back up is by "..": nothing is
// removed where it is moved to.
func TestDirectoryThatIsMovedAwayDoesNotLeadTheRemovalOutside(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		w.deepTree("top", 2*maxOpen, 1)
		r := w.startRemoval(maxOpen + 10)
		closed := 0
		for _, l := range r.levels {
			if l.dir == nil {
				closed++
			}
		}
		require.Equal(t, 10, closed, "the levels above are closed")
		// One level above it only, so that a removal which does go astray ends in the directory of the test.
		require.NoError(t, os.Rename(w.path("top/d0"), filepath.Join(w.outside, "moved")))
		require.NoError(t, os.Mkdir(filepath.Join(w.outside, "d0"), 0o755), "of the name that is to be removed next")
		require.ErrorIs(t, r.finish(t), ErrRaced)
		require.NoError(t, os.Remove(filepath.Join(w.outside, "d0")), "it is still there")
		require.NoError(t, os.Remove(filepath.Join(w.outside, "moved")), "it was emptied")
		w.isUnharmed()
	})
}

func TestTreeWithASteadyWriterIsAnError(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("top/a")
		r := w.startRemoval(1)
		var err error
		passes := 0
		for ; err == nil; passes++ {
			w.mkdir("top/again")
			require.Less(t, passes, 100*maxPasses)
			require.Len(t, r.levels, 1)
			err = r.proceed(t.Context())
		}
		require.ErrorIs(t, err, ErrRaced)
	})
}

// A large tree is not looked at itself: the mount table tells of the mounts in it.
func TestAMountInALargeTreeIsSeen(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		for i := range maxSearched + 10 {
			w.write(w.path(fmt.Sprint("f", i)))
		}
		w.mkdir("z/deep")
		w.tmpfs(w.path("z/deep"))
		require.ErrorIs(t, w.root.RemoveContent(t.Context()), ErrMounted)
		assert.FileExists(t, w.path("f0"))
		w.unmount(w.path("z/deep"))
		require.NoError(t, w.root.RemoveContent(t.Context()))
		assert.NoFileExists(t, w.path("f0"))
		w.isUnharmed()
	})
}
