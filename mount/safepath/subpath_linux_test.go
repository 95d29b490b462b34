package safepath

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// node is a world whose root is a volume, with a pod that uses it.
type node struct {
	*world
	podDir   string
	subpaths *Subpaths
}

// onANode runs a test in each way, and checks that it has left no sub-path.
func onANode(t *testing.T, test func(t *testing.T, n *node)) {
	mounttest.RequireMounts(t)
	inEachWay(t, func(t *testing.T, w *world) {
		n := &node{world: w, podDir: filepath.Join(filepath.Dir(w.dir), "pod")}
		require.NoError(t, os.Mkdir(n.podDir, 0o750))
		n.restart()
		test(t, n)
		assert.NoDirExists(t, filepath.Join(n.podDir, SubpathsDir))
	})
}

// restart forgets everything, as a new process has.
func (n *node) restart() {
	n.subpaths = NewSubpaths(n.mounter, SubpathsOptions{Without: n.without})
}

func (n *node) owner() Owner {
	return Owner{PodDir: n.podDir, VolumeName: "data", ContainerName: "web"}
}

func (n *node) subpath(path string) Subpath {
	return Subpath{Owner: n.owner(), VolumePath: n.dir, Path: path}
}

func (n *node) prepare(sub Subpath) string {
	n.t.Helper()
	path, err := n.subpaths.Prepare(n.t.Context(), sub)
	require.NoError(n.t, err)
	require.Equal(n.t, sub.HostPath(), path)
	return path
}

func (n *node) clean() {
	n.t.Helper()
	require.NoError(n.t, n.subpaths.CleanContainer(n.t.Context(), n.owner(), mount.UnmountOptions{}))
}

// target is where the sub-path with the index 0 is.
func (n *node) target() string { return n.subpath("").HostPath() }

func (n *node) mountAt(path string) mount.MountPoint {
	n.t.Helper()
	found, err := n.mounter.Lookup(n.t.Context(), path)
	require.NoError(n.t, err)
	return found
}

// isClean checks that nothing is left beneath the pod.
func (n *node) isClean() {
	n.t.Helper()
	assert.NoDirExists(n.t, filepath.Join(n.podDir, SubpathsDir))
	table, err := n.mounter.List(n.t.Context())
	require.NoError(n.t, err)
	for _, m := range table {
		assert.NotContains(n.t, m.Path, n.podDir+"/")
	}
}

func TestSubpathIsTheDirectoryOrTheFileOfTheVolume(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		n.mkdir("sites/a")
		n.write(n.path("sites/a/index"))
		dir := n.prepare(n.subpath("sites/a"))
		assert.Equal(t, filepath.Join(n.podDir, "volume-subpaths/data/web/0"), dir)
		assert.FileExists(t, filepath.Join(dir, "index"))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "new"), nil, 0o600))
		assert.FileExists(t, n.path("sites/a/new"))

		file := n.subpath("sites/a/index")
		file.VolumeMountIndex, file.ReadOnly = 12, true
		content, err := os.ReadFile(n.prepare(file))
		require.NoError(t, err)
		assert.Equal(t, "alive", string(content))
		require.ErrorIs(t, os.WriteFile(file.HostPath(), nil, 0o600), unix.EROFS)
		n.clean()
		n.isClean()
		assert.FileExists(t, n.path("sites/a/index"))
		n.clean()
	})
}

func TestMissingSubpathIsMadeLikeTheRootOfTheVolume(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	onANode(t, func(t *testing.T, n *node) {
		require.NoError(t, os.Chmod(n.dir, fs.ModeSetgid|0o777))
		_ = os.Chown(n.dir, -1, 1) // where there is such a group
		n.prepare(n.subpath("./a//b/"))
		var root, made unix.Stat_t
		require.NoError(t, unix.Stat(n.dir, &root))
		for _, name := range []string{"a", "a/b"} {
			require.NoError(t, unix.Stat(n.path(name), &made))
			assert.Equal(t, root.Mode, made.Mode, name)
			assert.Equal(t, root.Gid, made.Gid, name)
		}
		n.clean()
		assert.DirExists(t, n.path("a/b"), "it belongs to the volume")

		// Without setgid the kernel would give it to the group of this process.
		require.NoError(t, unix.Stat(n.dir, &root))
		require.NoError(t, os.Chmod(n.dir, 0o770))
		n.prepare(n.subpath("plain"))
		require.NoError(t, unix.Stat(n.path("plain"), &made))
		assert.Equal(t, root.Gid, made.Gid)
		n.clean()
	})
}

func TestPreparedSubpathStaysAndIsMadeAnewWhenItIsAnother(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		n.mkdir("a")
		n.prepare(n.subpath("a"))
		first := n.mountAt(n.target())
		n.restart()
		n.prepare(n.subpath("a"))
		assert.Equal(t, first, n.mountAt(n.target()), "the same mount")

		// The workload replaces the directory.
		require.NoError(t, os.Rename(n.path("a"), n.path("old")))
		n.mkdir("a")
		n.write(n.path("a/new"))
		n.prepare(n.subpath("a"))
		assert.FileExists(t, filepath.Join(n.target(), "new"))

		// Now read-only; and then a file.
		readOnly := n.subpath("a")
		readOnly.ReadOnly = true
		n.prepare(readOnly)
		require.ErrorIs(t, os.WriteFile(filepath.Join(n.target(), "x"), nil, 0o600), unix.EROFS)
		second := n.mountAt(n.target())
		n.prepare(readOnly)
		assert.Equal(t, second.ID, n.mountAt(n.target()).ID)
		n.write(n.path("file"))
		n.prepare(n.subpath("file"))
		n.clean()
	})
}

func TestReadOnlySubpathThatBecameWritableIsMadeAnew(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		n.mkdir("a")
		sub := n.subpath("a")
		sub.ReadOnly = true
		n.prepare(sub)
		require.NoError(t, n.mounter.Mount(t.Context(), mount.Request{Target: n.target(), Options: []string{"remount", "bind", "rw"}}))
		n.prepare(sub)
		assert.True(t, n.mountAt(n.target()).ReadOnly())
		n.clean()
	})
}

func TestSubpathThatIsMountedOnlyOnceThoughAskedForByMany(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		n.mkdir("a")
		const many = 8
		errs := make(chan error, many)
		for range many {
			go func() {
				_, err := n.subpaths.Prepare(t.Context(), n.subpath("a"))
				errs <- err
			}()
		}
		for range many {
			require.NoError(t, <-errs)
		}
		table, err := n.mounter.List(t.Context())
		require.NoError(t, err)
		mounts := 0
		for _, m := range table {
			if m.Path == n.target() {
				mounts++
			}
		}
		assert.Equal(t, 1, mounts)
		n.clean()
	})
}

// What one removes when it is empty the other has just found.
func TestContainersOfOneVolumeDoNotDisturbEachOther(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		n.mkdir("a")
		const rounds = 100
		var all sync.WaitGroup
		for _, name := range []string{"web", "init", "sidecar"} {
			all.Go(func() {
				sub := n.subpath("a")
				sub.ContainerName = name
				for range rounds {
					_, err := n.subpaths.Prepare(t.Context(), sub)
					assert.NoError(t, err)
					assert.NoError(t, n.subpaths.CleanContainer(t.Context(), sub.Owner, mount.UnmountOptions{}))
				}
			})
		}
		all.Wait()
		n.isClean()
	})
}

func TestPropagationIsTheCallers(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		n.tmpfs(n.dir, "shared")
		n.mkdir("a/later")
		for _, propagation := range []string{"", Slave} {
			sub := n.subpath("a")
			sub.Propagation = propagation
			n.prepare(sub)
			n.tmpfs(n.path("a/later"))
			n.write(n.path("a/later/file"))
			_, err := os.Stat(filepath.Join(n.target(), "later/file"))
			assert.Equal(t, propagation == Slave, err == nil, "%q: %v", propagation, err)
			n.unmount(n.path("a/later"))
			n.clean()
		}
	})
}

// swapping puts a link to elsewhere in the place of a directory when it is asked to mount.
type swapping struct {
	mount.Interface
	t       *testing.T
	dir, to string
}

func (s *swapping) Mount(ctx context.Context, request mount.Request) error {
	require.NoError(s.t, os.Rename(s.dir, s.dir+"-before"))
	require.NoError(s.t, os.Symlink(s.to, s.dir))
	return s.Interface.Mount(ctx, request)
}

func TestTheDirectoryThatWasComparedIsTheOneThatIsBound(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		kept := filepath.Join(n.outside, "kept")
		require.NoError(t, os.MkdirAll(filepath.Join(kept, "a"), 0o755))
		n.mkdir("a")
		want := inodeOf(t, n.path("a"))
		n.subpaths = NewSubpaths(&swapping{Interface: n.mounter, t: t, dir: n.dir, to: kept}, SubpathsOptions{Without: n.without})
		sub := n.subpath("a")
		sub.FollowVolumePath, sub.Apart = true, []string{kept}
		assert.Equal(t, want, inodeOf(t, n.prepare(sub)), "and not what the path leads to by now")
		n.clean()

		n.restart()
		_, err := n.subpaths.Prepare(t.Context(), sub)
		require.ErrorIs(t, err, ErrOverlap)
		n.isClean()
	})
}

func TestSubpathThatLeadsOutOfTheVolumeIsRefusedAndLeavesNothing(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		n.mkdir("a")
		n.link("/", "root")
		n.link(n.outside, "outside")
		n.link("/proc/self/root", "self")
		n.link("a", "inside")
		require.NoError(t, unix.Mkfifo(n.path("fifo"), 0o600))
		kind := new(KindError)
		for _, path := range []string{"root", "root/etc", "outside", "self", "inside", "inside/missing", "..", "a/../..", "/etc", ".", "fifo"} {
			_, err := n.subpaths.Prepare(t.Context(), n.subpath(path))
			require.Error(t, err, path)
			isRefused := errors.Is(err, ErrEscapes) || errors.Is(err, ErrInvalid) || errors.As(err, &kind)
			assert.True(t, isRefused, "%s: %v", path, err)
			assert.NotContains(t, Public(err), n.dir)
			n.isClean()
		}
		for _, name := range append(slices.Clone(refused), "a/b") {
			sub := n.subpath("a")
			sub.VolumeName = name
			_, volumeErr := n.subpaths.Prepare(t.Context(), sub)
			require.ErrorIs(t, volumeErr, ErrInvalid)
			sub = n.subpath("a")
			sub.ContainerName = name
			_, containerErr := n.subpaths.Prepare(t.Context(), sub)
			require.ErrorIs(t, containerErr, ErrInvalid)
			require.ErrorIs(t, n.subpaths.CleanContainer(t.Context(), sub.Owner, mount.UnmountOptions{}), ErrInvalid)
		}
		negative := n.subpath("a")
		negative.VolumeMountIndex = -1
		_, err := n.subpaths.Prepare(t.Context(), negative)
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorIs(t, n.subpaths.CleanVolume(t.Context(), n.owner(), mount.UnmountOptions{}), ErrInvalid)
		n.isUnharmed()
	})
}

func TestLinksOfAPublishedVolumeAreFollowedInsideItOnly(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		n.mkdir("..2026/sub", "dir")
		n.write(n.path("..2026/key"))
		n.link("..2026", "..data")
		n.link("..data/key", "key")
		n.link("../dir/../..data/sub", "dir/up")
		for _, path := range []string{"key", "..data/key", "dir/up", "..data/missing/below"} {
			sub := n.subpath(path)
			sub.FollowInside = true
			n.prepare(sub)
			n.clean()
		}
		assert.DirExists(t, n.path("..2026/missing/below"))
		n.link("/etc", "absolute")
		n.link("../outside", "out")
		n.link("dir/../../outside", "out-later")
		n.link("circle", "circle")
		for _, path := range []string{"absolute", "out", "out/canary", "out-later", "circle"} {
			sub := n.subpath(path)
			sub.FollowInside = true
			_, err := n.subpaths.Prepare(t.Context(), sub)
			require.ErrorIs(t, err, ErrEscapes, path)
		}
		n.isUnharmed()
	})
}

// A container that begins on an empty directory where its owner has linked to content would be no better off.
func TestNothingIsMadeWhereALinkLeads(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		n.mkdir("dir")
		n.link("releases/42", "current")
		n.link("current", "newest")
		n.link("../nothing", "dir/up")
		n.link("nothing/../dir", "through-nothing")
		n.link("nothing/../../outside", "out-through-nothing")
		for _, path := range []string{"current", "current/data", "newest/data", "dir/up", "through-nothing", "out-through-nothing"} {
			sub := n.subpath(path)
			sub.FollowInside = true
			_, err := n.subpaths.Prepare(t.Context(), sub)
			require.ErrorIs(t, err, ErrDangling, path)
			require.ErrorIs(t, err, fs.ErrNotExist, path)
			assert.Contains(t, Public(err), "leads to what does not exist")
			n.isClean()
		}
		assert.NoDirExists(t, n.path("releases"))
		assert.NoDirExists(t, n.path("nothing"))
		n.isUnharmed()
		n.mkdir("releases/42")
		sub := n.subpath("newest/data/below")
		sub.FollowInside = true
		n.prepare(sub)
		n.clean()
		assert.DirExists(t, n.path("releases/42/data/below"), "what the path itself names is made")
	})
}

func TestVolumePathOfTheOperatorMayHoldLinks(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		n.mkdir("a")
		link := filepath.Join(n.podDir, "link")
		require.NoError(t, os.Symlink(n.dir, link))
		sub := n.subpath("a")
		sub.VolumePath = link
		_, err := n.subpaths.Prepare(t.Context(), sub)
		require.ErrorIs(t, err, ErrEscapes)
		sub.FollowVolumePath = true
		n.prepare(sub)
		n.clean()
	})
}

func TestFailedPrepareUndoesWhatItHasMade(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		n.mkdir("there")
		fails := errors.New("the mount fails")
		n.subpaths = NewSubpaths(&failing{Interface: n.mounter, err: fails}, SubpathsOptions{Without: n.without})
		for _, path := range []string{"there", "a/b/c"} {
			_, err := n.subpaths.Prepare(t.Context(), n.subpath(path))
			require.ErrorIs(t, err, fails)
			n.isClean()
		}
		assert.NoDirExists(t, n.path("a"))
		assert.DirExists(t, n.path("there"))
		n.restart()
		sub := n.subpath("a/b")
		sub.PodDir += "-missing"
		_, err := n.subpaths.Prepare(t.Context(), sub)
		require.ErrorIs(t, err, fs.ErrNotExist)
		assert.NoDirExists(t, n.path("a"))
	})
}

// failing is a mounter that cannot mount.
type failing struct {
	mount.Interface
	err error
}

func (f *failing) Mount(context.Context, mount.Request) error { return f.err }

// sticky is a mounter that mounts something else than it is told, and may not take it off again.
type sticky struct {
	*between
	unmountErr error
}

func (s *sticky) Unmount(ctx context.Context, path string, options mount.UnmountOptions) error {
	if s.unmountErr != nil {
		return s.unmountErr
	}
	return s.between.Unmount(ctx, path, options)
}

func TestMountOfAnythingElseThanWhatWasOpenedIsTakenOffAgain(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		n.mkdir("a")
		wrong := &sticky{between: &between{Interface: n.mounter, before: func(request mount.Request) mount.Request {
			request.Source = n.outside
			return request
		}}}
		n.subpaths = NewSubpaths(wrong, SubpathsOptions{Without: n.without})
		_, err := n.subpaths.Prepare(t.Context(), n.subpath("a"))
		require.ErrorIs(t, err, ErrEscapes)
		require.NotErrorIs(t, err, mount.ErrUncertain)
		n.isClean()

		wrong.unmountErr = unix.EBUSY
		_, err = n.subpaths.Prepare(t.Context(), n.subpath("a"))
		require.ErrorIs(t, err, ErrEscapes)
		require.ErrorIs(t, err, unix.EBUSY)
		require.ErrorIs(t, err, mount.ErrUncertain, "it is mounted")
		assert.FileExists(t, filepath.Join(n.target(), "canary"))
		n.unmount1(n.target())
		n.restart()
		n.clean()
		n.isUnharmed()
	})
}

// What may still come to be mounted keeps its source and its mark, by which it is known later.
func TestLostMountKeepsItsSourceAndItsMark(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		ended := make(chan struct{})
		close(ended)
		lost := mount.NewAbandonedError("mount", n.target(), context.Canceled, ended)
		n.subpaths = NewSubpaths(&failing{Interface: n.mounter, err: lost}, SubpathsOptions{Without: n.without})
		_, err := n.subpaths.Prepare(t.Context(), n.subpath("new/dir"))
		require.ErrorIs(t, err, mount.ErrUncertain)
		assert.DirExists(t, n.path("new/dir"))
		names, err := os.ReadDir(filepath.Dir(n.target()))
		require.NoError(t, err)
		require.Len(t, names, 1)
		_, isMark := parseMark(names[0].Name())
		assert.True(t, isMark)

		require.NoError(t, os.Mkdir(n.target(), 0o750)) // it comes to be mounted
		n.bind(n.path("new/dir"), n.target())
		n.restart()
		n.clean()
	})
}

func TestCleanVolumeCleansAllContainersAndNoOtherVolume(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		n.mkdir("a")
		for _, name := range []string{"web", "init", "sidecar"} {
			sub := n.subpath("a")
			sub.ContainerName = name
			n.prepare(sub)
		}
		other := n.subpath("a")
		other.VolumeName = "other"
		n.prepare(other)
		n.restart()
		volumes, err := n.subpaths.Volumes(t.Context(), n.podDir)
		require.NoError(t, err)
		assert.Equal(t, []string{"data", "other"}, volumes)
		n.clean()
		require.NoError(t, n.subpaths.CleanVolume(t.Context(), Owner{PodDir: n.podDir, VolumeName: "data"}, mount.UnmountOptions{}))
		assert.NoDirExists(t, filepath.Join(n.podDir, SubpathsDir, "data"))
		assert.DirExists(t, other.HostPath())
		n.mountAt(other.HostPath())
		require.NoError(t, n.subpaths.CleanContainer(t.Context(), other.Owner, mount.UnmountOptions{}))
		require.NoError(t, n.subpaths.CleanContainer(t.Context(), other.Owner, mount.UnmountOptions{}))
		for _, dir := range []string{n.podDir, n.podDir + "-missing"} {
			volumes, err = n.subpaths.Volumes(t.Context(), dir)
			require.NoError(t, err)
			assert.Empty(t, volumes)
		}
		_, err = n.subpaths.Volumes(t.Context(), "pod")
		require.ErrorIs(t, err, ErrInvalid)
		other.PodDir += "-missing"
		require.NoError(t, n.subpaths.CleanContainer(t.Context(), other.Owner, mount.UnmountOptions{}))
	})
}

// A bind over what is to be cleaned.
func TestForeignMountIsReportedAndNeverTakenOff(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		n.mkdir("a")
		n.prepare(n.subpath("a"))
		containerDir := filepath.Dir(n.target())
		for _, place := range []string{
			n.target(), containerDir, filepath.Dir(containerDir), filepath.Join(n.podDir, SubpathsDir),
		} {
			n.bind(n.outside, place)
			for _, try := range []func() error{
				func() error {
					return n.subpaths.CleanContainer(t.Context(), n.owner(), mount.UnmountOptions{Lazy: true})
				},
				func() error {
					return n.subpaths.CleanVolume(t.Context(), Owner{PodDir: n.podDir, VolumeName: "data"}, mount.UnmountOptions{})
				},
				func() error { _, err := n.subpaths.Prepare(t.Context(), n.subpath("a")); return err },
			} {
				require.ErrorIs(t, try(), mount.ErrForeign, place)
				assert.FileExists(t, filepath.Join(place, "canary"), "it is still mounted")
			}
			n.unmount1(place)
			assert.Equal(t, inodeOf(t, n.path("a")), inodeOf(t, n.target()), "and so is ours")
		}
		n.clean()
		n.isUnharmed()
	})
}

// covering is a mounter that mounts on top between the lookup and the unmount.
type covering struct {
	mount.Interface
	cover func(path string)
}

func (c *covering) Unmount(ctx context.Context, path string, options mount.UnmountOptions) error {
	c.cover(path)
	return c.Interface.Unmount(ctx, path, options)
}

func TestMountThatComesBetweenTheLookAndTheUnmountIsNotTakenOff(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		n.mkdir("a")
		n.prepare(n.subpath("a"))
		covered := &covering{Interface: n.mounter, cover: func(path string) { n.bind(n.outside, path) }}
		n.subpaths = NewSubpaths(covered, SubpathsOptions{Without: n.without})
		require.ErrorIs(t, n.subpaths.CleanContainer(t.Context(), n.owner(), mount.UnmountOptions{}), mount.ErrForeign)
		assert.FileExists(t, filepath.Join(n.target(), "canary"))
		n.unmount1(n.target())
		n.restart()
		n.clean()
	})
}

// A filesystem that does not even tell its inode number is known by its device.
func TestMountThatCannotBeLookedAtIsKnownByItsDevice(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		c := &container{tree: n.tree(), fd: n.tree().fd, dir: n.dir, mounter: n.mounter}
		e := entry{index: 7, isTarget: true, marks: []mark{{index: 7, id: fileID{major: 8, minor: 1, inode: 9}}}}
		require.NoError(t, c.checkOurs(e, mount.MountPoint{Major: 8, Minor: 1}))
		require.ErrorIs(t, c.checkOurs(e, mount.MountPoint{Major: 8, Minor: 2}), mount.ErrForeign)
	})
}

// unmount1 takes one mount off, whatever lies below.
func (n *node) unmount1(path string) {
	n.t.Helper()
	require.NoError(n.t, unix.Unmount(path, unix.UMOUNT_NOFOLLOW))
}

// A mount in the place of a sub-path that was never prepared there.
func TestMountWithoutAMarkIsForeign(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		n.mkdir("a")
		require.NoError(t, os.MkdirAll(n.target(), 0o750))
		n.bind(n.path("a"), n.target())
		require.ErrorIs(t, n.subpaths.CleanContainer(t.Context(), n.owner(), mount.UnmountOptions{}), mount.ErrForeign)
		_, err := n.subpaths.Prepare(t.Context(), n.subpath("a"))
		require.ErrorIs(t, err, mount.ErrForeign)
		n.unmount(n.target())
		n.clean()
	})
}

func TestWhatIsNotOursIsNotRemoved(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		n.mkdir("a")
		n.prepare(n.subpath("a"))
		n.unmount(n.target())
		for _, name := range []string{"0/data", "notes", "../notes"} {
			file := filepath.Join(filepath.Dir(n.target()), name)
			n.write(file)
			err := n.subpaths.CleanVolume(t.Context(), Owner{PodDir: n.podDir, VolumeName: "data"}, mount.UnmountOptions{})
			require.ErrorIs(t, err, unix.ENOTEMPTY, name)
			assert.FileExists(t, file)
			require.NoError(t, os.Remove(file))
		}
		n.clean()
	})
}

// The process ends between any two steps; the next one knows only the names.
func TestCrashAtAnyStepIsCleanedAndPreparedAgain(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		n.mkdir("a")
		dir := filepath.Dir(n.target())
		now, err := look(unix.AT_FDCWD, n.path("a"))
		require.NoError(t, err)
		sub := n.subpath("a")
		sub.BindOptions, err = sub.BindOptions.check()
		require.NoError(t, err)
		mark := filepath.Join(dir, newMark(sub, now.id).name())
		stale := filepath.Join(dir, newMark(sub, fileID{1, 2, 3}).name())
		steps := []struct {
			name string
			do   func()
		}{
			{"directories", func() { require.NoError(t, os.MkdirAll(dir, 0o750)) }},
			{"mark", func() { n.write(mark) }},
			{"target", func() { require.NoError(t, os.Mkdir(n.target(), 0o750)) }},
			{"mount", func() { n.bind(n.path("a"), n.target()) }},
			{"mark of an earlier one", func() { n.write(stale) }},
		}
		for last := range steps {
			for _, then := range []func(){n.clean, func() { n.prepare(n.subpath("a")); n.clean() }} {
				for _, step := range steps[:last+1] {
					step.do()
				}
				n.restart()
				then()
				n.isClean()
			}
		}
		assert.DirExists(t, n.path("a"))
	})
}

func TestSubpathInUseOnTheHostStaysAndIsCleanedLater(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		n.mkdir("a")
		n.write(n.path("file"))
		n.prepare(n.subpath("a"))
		free := n.subpath("file")
		free.VolumeMountIndex = 1
		n.prepare(free)
		used, err := os.Open(n.target())
		require.NoError(t, err)
		require.ErrorIs(t, n.subpaths.CleanContainer(t.Context(), n.owner(), mount.UnmountOptions{}), unix.EBUSY)
		n.mountAt(n.target())
		assert.NoFileExists(t, free.HostPath(), "the others are cleaned")
		require.NoError(t, used.Close())
		n.clean()
	})
}

// CVE-2017-1002101, CVE-2021-25741: whole preparations while the sub-path is swapped for a link to the host's root.
func TestPreparedSubpathIsNeverTheHostsRootWhileALinkIsSwapped(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		n.mkdir("p/etc")
		n.link("/", "link")
		want := inodeOf(t, n.path("p/etc"))
		var o outcomes
		swaps := n.race("p", "link", func() {
			path, err := n.subpaths.Prepare(t.Context(), n.subpath("p/etc"))
			if o.count(t, err); err == nil {
				require.Equal(t, want, inodeOf(t, path))
				n.clean()
			}
		})
		t.Logf("%d prepared, %d refused, %d swaps", o.worked, o.refused, swaps)
		n.isClean()
	})
}
