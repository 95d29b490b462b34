package safepath

import (
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

func TestOpenReadsWhatIsBeneath(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("a/b")
		w.write(w.path("a/b/file"))
		file, err := w.root.Open(t.Context(), "a/b/file", RegularFile)
		require.NoError(t, err)
		defer file.Close()
		content, err := io.ReadAll(file)
		require.NoError(t, err)
		assert.Equal(t, "alive", string(content))

		sub, err := w.root.Sub(t.Context(), "a")
		require.NoError(t, err)
		defer sub.Close()
		dir, err := sub.Open(t.Context(), "b", Directory|RegularFile)
		require.NoError(t, err)
		defer dir.Close()
		names, err := dir.Readdirnames(-1)
		require.NoError(t, err)
		assert.Equal(t, []string{"file"}, names)

		_, err = sub.Open(t.Context(), "missing/file", RegularFile)
		require.ErrorIs(t, err, fs.ErrNotExist)
		_, err = sub.Open(t.Context(), "b/file/below", RegularFile)
		require.ErrorIs(t, err, unix.ENOTDIR)
		_, err = sub.Open(t.Context(), "b", Socket)
		require.ErrorIs(t, err, ErrInvalid)
	})
}

func TestAMissingRootIsMadeThroughNoLink(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("a")
		w.link(w.outside, "link")
		options := Options{Without: w.without}
		made, err := OpenOrMake(t.Context(), w.path("a/b/c"), MkdirOptions{Mode: 0o700}, options)
		require.NoError(t, err)
		defer made.Close()
		dir, err := made.Directory(t.Context())
		require.NoError(t, err)
		defer dir.Close()
		info, err := dir.Stat()
		require.NoError(t, err)
		assert.Equal(t, fs.ModeDir|0o700, info.Mode())
		there, err := OpenOrMake(t.Context(), w.path("a/b/c"), MkdirOptions{}, options)
		require.NoError(t, err)
		defer there.Close()

		_, err = OpenOrMake(t.Context(), w.path("link/b"), MkdirOptions{}, options)
		require.ErrorIs(t, err, ErrEscapes)
		_, err = OpenOrMake(t.Context(), w.path("b"), MkdirOptions{}, Options{FollowLinks: true})
		require.ErrorIs(t, err, ErrInvalid)
		w.isUnharmed()
	})
}

func TestRootIsADirectoryAtAPathWithoutLinks(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("a/b")
		w.link("a", "link")
		w.write(w.path("file"))
		options := Options{Without: w.without}
		for path, want := range map[string]error{
			w.path("link/b"): ErrEscapes, w.path("link"): ErrEscapes, w.path("file"): unix.ENOTDIR, w.path("missing"): fs.ErrNotExist,
			"relative": ErrInvalid, w.dir + "/a/../a": ErrInvalid, "": ErrInvalid, "/a\x00": ErrInvalid,
		} {
			_, err := Open(t.Context(), path, options)
			require.ErrorIs(t, err, want, path)
		}
		options.FollowLinks = true
		root, err := Open(t.Context(), w.path("link/b"), options)
		require.NoError(t, err)
		require.NoError(t, root.Close())
		top, err := Open(t.Context(), "/", Options{Without: w.without})
		require.NoError(t, err)
		require.NoError(t, top.Close())
	})
}

func TestRootOfADescriptorOutlivesItAndEndsWithClose(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("a/b")
		dir, err := os.Open(w.path("a"))
		require.NoError(t, err)
		root, err := fromFile(dir, Options{Without: w.without})
		require.NoError(t, err)
		require.NoError(t, dir.Close())
		sub, err := root.Sub(t.Context(), "b")
		require.NoError(t, err)
		require.NoError(t, sub.Close())
		require.NoError(t, root.Close())
		_, err = root.Sub(t.Context(), "b")
		require.ErrorIs(t, err, os.ErrClosed)
		_, err = fromFile(dir, Options{})
		require.ErrorIs(t, err, os.ErrClosed)

		w.write(w.path("file"))
		file, err := os.Open(w.path("file"))
		require.NoError(t, err)
		defer file.Close()
		_, err = fromFile(file, Options{})
		var kind *KindError
		require.ErrorAs(t, err, &kind)
	})
}

// Each name of the corpus is refused by each method, before anything is touched.
func TestNoMethodTakesANameThatLeadsUpwards(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("a")
		ctx := t.Context()
		for _, name := range refused {
			_, openErr := w.root.Open(ctx, name, Directory)
			_, pathErr := w.root.OpenPath(ctx, name, AnyKind)
			_, subErr := w.root.Sub(ctx, name)
			for _, err := range []error{
				openErr, pathErr, subErr,
				w.root.MkdirAll(ctx, name, MkdirOptions{}), w.root.Create(ctx, name, 0o600),
				w.root.Remove(ctx, name), w.root.RemoveAll(ctx, name),
				w.root.Bind(ctx, name, filepath.Join(w.outside, "target"), BindOptions{}),
			} {
				require.ErrorIs(t, err, ErrInvalid, "%q", name)
			}
		}
		for _, name := range accepted {
			require.NoError(t, w.root.MkdirAll(ctx, "b/"+name, MkdirOptions{}), "%q", name)
			assert.DirExists(t, w.dir+"/b/"+name)
		}
		require.NoError(t, w.root.RemoveAll(ctx, "b"))
		w.isUnharmed()
	})
}

func TestLinksAreNotFollowedWhereverTheyLead(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("a/b")
		for name, to := range map[string]string{
			"absolute": w.outside, "root": "/", "self": "/proc/self/root", "cwd": "/proc/self/cwd", "up": "../outside",
			"inside": "a", "dangling": "nowhere", "circle": "circle",
		} {
			w.link(to, name)
			for _, name := range []string{name, name + "/b"} {
				_, err := w.root.OpenPath(t.Context(), name, AnyKind)
				require.ErrorIs(t, err, ErrEscapes, name)
				require.ErrorIs(t, err, unix.ELOOP, name)
				require.ErrorIs(t, w.root.MkdirAll(t.Context(), name, MkdirOptions{}), ErrEscapes, name)
				require.Error(t, w.root.Create(t.Context(), name, 0o600), name)
			}
			require.ErrorIs(t, w.root.Remove(t.Context(), name+"/canary"), ErrEscapes, name)
			require.ErrorIs(t, w.root.RemoveAll(t.Context(), name+"/canary"), ErrEscapes, name)
			require.NoError(t, w.root.Remove(t.Context(), name), "the link itself")
		}
		assert.DirExists(t, w.path("a/b"))
		w.isUnharmed()
	})
}

// The links in /proc are not followed by their text, and lead out of every root.
func TestMagicLinksAreNotFollowed(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		proc := w.open("/proc")
		for _, name := range []string{"self/root", "self/cwd", "self/root/etc", "thread-self/fd/0", "self/fd/0"} {
			_, err := proc.OpenPath(t.Context(), name, AnyKind)
			require.ErrorIs(t, err, ErrEscapes, name)
		}
	})
}

func TestWhatIsNoDirectoryAndNoFileIsNeverOpened(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		require.NoError(t, unix.Mkfifo(w.path("fifo"), 0o600))
		socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		defer closeFD(socket)
		t.Chdir(w.dir) // the address of a socket is short
		require.NoError(t, unix.Bind(socket, &unix.SockaddrUnix{Name: "socket"}))
		w.mkdir("dir")
		w.write(w.path("file"))
		for name, got := range map[string]Kind{"fifo": Fifo, "socket": Socket, "dir": Directory, "file": RegularFile} {
			for _, want := range []Kind{Directory, RegularFile, Directory | RegularFile} {
				if want&got == 0 {
					var kind *KindError
					_, err := w.root.Open(t.Context(), name, want)
					require.ErrorAs(t, err, &kind, name)
					assert.Equal(t, KindError{Want: want, Got: got}, *kind)
				}
			}
			if got != Directory {
				require.ErrorIs(t, w.root.MkdirAll(t.Context(), name, MkdirOptions{}), unix.ENOTDIR)
			}
			path, err := w.root.OpenPath(t.Context(), name, got)
			require.NoError(t, err)
			require.NoError(t, path.Close())
		}
	})
}

func TestDeviceWhereADirectoryIsExpectedIsNeverOpened(t *testing.T) {
	mounttest.RequireRoot(t)
	inEachWay(t, func(t *testing.T, w *world) {
		// A device without a driver: to open it would be ENXIO.
		require.NoError(t, unix.Mknod(w.path("device"), unix.S_IFCHR|0o600, int(unix.Mkdev(511, 255))))
		var kind *KindError
		for _, want := range []Kind{Directory, RegularFile, Directory | RegularFile} {
			_, err := w.root.Open(t.Context(), "device", want)
			require.ErrorAs(t, err, &kind)
			assert.Equal(t, Device, kind.Got)
		}
	})
}

// A process that was killed may have left a directory before it had its mode.
func TestADirectoryIsMadeOrGivenWhatItLacks(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	inEachWay(t, func(t *testing.T, w *world) {
		for _, made := range []bool{true, false} {
			is, err := w.root.MakeDirectory(t.Context(), "volume", 0o755)
			require.NoError(t, err)
			assert.Equal(t, made, is)
			info, err := os.Stat(w.path("volume"))
			require.NoError(t, err)
			assert.Equal(t, fs.ModeDir|0o755, info.Mode())
			require.NoError(t, os.Chmod(w.path("volume"), 0o700))
		}
		require.NoError(t, os.Chmod(w.path("volume"), 0o775))
		_, err := w.root.MakeDirectory(t.Context(), "volume", 0o755)
		require.NoError(t, err)
		info, err := os.Stat(w.path("volume"))
		require.NoError(t, err)
		assert.Equal(t, fs.ModeDir|0o775, info.Mode(), "nothing is taken from it")
		require.NoError(t, os.Symlink("volume", w.path("link")))
		_, err = w.root.MakeDirectory(t.Context(), "link", 0o777)
		require.ErrorIs(t, err, ErrEscapes)
	})
}

func TestDirectoriesHaveExactlyTheModeThatWasAskedFor(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	inEachWay(t, func(t *testing.T, w *world) {
		group := os.Getgid()
		for name, mode := range map[string]fs.FileMode{
			"plain": 0o755, "all": 0o777, "setgid": fs.ModeSetgid | 0o770, "sticky": fs.ModeSticky | 0o777, "zero": 0,
		} {
			require.NoError(t, w.root.MkdirAll(t.Context(), name+"/below", MkdirOptions{Mode: mode, Group: &group}))
			if mode == 0 {
				mode = 0o750
			}
			for _, dir := range []string{name, name + "/below"} {
				info, err := os.Stat(w.path(dir))
				require.NoError(t, err)
				assert.Equal(t, fs.ModeDir|mode, info.Mode(), dir)
			}
		}
		require.NoError(t, os.Chmod(w.path("plain"), 0o700))
		require.NoError(t, w.root.MkdirAll(t.Context(), "plain/below", MkdirOptions{Mode: 0o777}))
		info, err := os.Stat(w.path("plain"))
		require.NoError(t, err)
		assert.Equal(t, fs.ModeDir|0o700, info.Mode(), "what was there stays as it is")

		require.NoError(t, w.root.Create(t.Context(), "all/file", 0o666))
		info, err = os.Stat(w.path("all/file"))
		require.NoError(t, err)
		assert.Equal(t, fs.FileMode(0o666), info.Mode())
		require.ErrorIs(t, w.root.Create(t.Context(), "all/file", 0o666), fs.ErrExist)
	})
}

func TestDirectoryThatWasSwappedInIsNotOpenedUp(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("secret/content", "foreign")
		require.NoError(t, os.Chmod(w.path("secret"), 0o700))
		tree := w.tree()
		check := func(name string) error {
			fd, err := tree.openPath(t.Context(), tree.fd, name, how{directory: true})
			require.NoError(t, err)
			fd, _, err = tree.finish(fd, 0o777, nil)
			if err == nil {
				closeFD(fd)
			}
			return err
		}
		require.ErrorIs(t, check("secret"), ErrRaced)
		assert.EqualValues(t, 0o700, modeOf(t, w.path("secret")))
		if os.Chown(w.path("foreign"), 1, 1) == nil { // root only
			require.ErrorIs(t, check("foreign"), ErrRaced)
			assert.EqualValues(t, 0o755, modeOf(t, w.path("foreign")))
		}
	})
}

// What took the place of a directory that was made is not removed in its stead, though it is empty.
func TestForeignDirectoryIsNotRemoved(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("mine", "theirs")
		tree := w.tree()
		mine, err := look(tree.fd, "mine")
		require.NoError(t, err)
		require.NoError(t, tree.unmake(t.Context(), []madeDir{{"mine", mine.id}, {"theirs", mine.id}, {"gone", mine.id}}))
		assert.NoDirExists(t, w.path("mine"))
		assert.DirExists(t, w.path("theirs"))
	})
}

// A file is in the way, and then a directory. Create has seen the file, so it must not return success without a descriptor.
func TestFileThatBecomesADirectoryIsAnErrorStill(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("a/b")
		w.write(w.path("a/file"))
		tree := w.tree()
		require.ErrorIs(t, tree.notDirectory(t.Context(), tree.fd, "a/b", unix.ENOTDIR), unix.ENOTDIR)
		var kind *KindError
		require.ErrorAs(t, tree.notDirectory(t.Context(), tree.fd, "a/file", unix.ENOTDIR), &kind)
		require.NoError(t, tree.notDirectory(t.Context(), tree.fd, "a/b", nil))
	})
}

func modeOf(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Lstat(path)
	require.NoError(t, err)
	return info.Mode().Perm()
}

func TestFailedMkdirAllLeavesNothing(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("a")
		group := 1<<31 - 2
		err := w.root.MkdirAll(t.Context(), "a/b/c", MkdirOptions{Group: &group})
		if os.Getuid() != 0 || err != nil { // an ordinary user, or a user namespace that does not know the group
			require.Error(t, err)
			assert.NoDirExists(t, w.path("a/b"))
			assert.DirExists(t, w.path("a"))
		}
		w.tmpfs(w.path("a"), "nr_inodes=3") // its root, and two more
		require.ErrorIs(t, w.root.MkdirAll(t.Context(), "a/b/c/d/e", MkdirOptions{}), unix.ENOSPC)
		assert.NoDirExists(t, w.path("a/b"))
	})
}

func TestBindShowsWhatWasOpenedAndNotWhatTheNameLeadsToLater(t *testing.T) {
	mounttest.RequireMounts(t)
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("a")
		w.write(w.path("a/inside"))
		target := filepath.Join(filepath.Dir(w.dir), "target")
		mounter := &between{Interface: w.mounter, before: func(request mount.Request) mount.Request {
			require.NoError(t, os.Rename(w.path("a"), w.path("moved")))
			w.link(w.outside, "a")
			return request
		}}
		root, err := Open(t.Context(), w.dir, Options{Mounter: mounter, Without: w.without})
		require.NoError(t, err)
		defer root.Close()
		require.NoError(t, root.Bind(t.Context(), "a", target, BindOptions{ReadOnly: true}))
		defer w.unmount(target)
		assert.FileExists(t, filepath.Join(target, "inside"))
		require.ErrorIs(t, os.WriteFile(filepath.Join(target, "new"), nil, 0o600), unix.EROFS)
		require.ErrorIs(t, root.Bind(t.Context(), "a", target, BindOptions{}), ErrEscapes)
		require.ErrorIs(t, root.Bind(t.Context(), "moved", target, BindOptions{Propagation: "x"}), ErrInvalid)
	})
}

// between is a mounter that does something before it mounts.
type between struct {
	mount.Interface
	before func(mount.Request) mount.Request
}

func (b *between) Mount(ctx context.Context, request mount.Request) error {
	return b.Interface.Mount(ctx, b.before(request))
}

func TestWhatThePodsOwnerIsToldHoldsNothingOfTheHost(t *testing.T) {
	w := newWorld(t, 0)
	w.link("/", "link")
	require.NoError(t, unix.Mkfifo(w.path("fifo"), 0o600))
	for name, want := range map[string]string{
		"link":    `open "link": the path leads out of the volume, or a symbolic link is in it`,
		"../up":   `open "../up": the path is not valid: it must be relative and must not contain ".."`,
		"missing": `open "missing": the path does not exist`,
		"fifo":    `open "fifo": it is a named pipe, and not a directory or regular file`,
	} {
		_, err := w.root.Open(t.Context(), name, Directory|RegularFile)
		require.Error(t, err)
		assert.Contains(t, err.Error(), w.dir, "the operator sees where")
		assert.Equal(t, want, Public(err))
	}
	assert.Empty(t, Public(nil))
	assert.Equal(t, `open "a": input/output error`, Public(w.root.wrap("open", "a", unix.EIO)))
	assert.Equal(t, "it failed; the node's operator can see why", Public(io.EOF))
}
