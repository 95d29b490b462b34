package safepath

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// withFUSE runs a test on a node whose volume is a FUSE filesystem.
func withFUSE(t *testing.T, test func(t *testing.T, n *node, f *mounttest.FUSE)) {
	onANode(t, func(t *testing.T, n *node) {
		f := mounttest.NewFUSE(t, mounttest.FUSEOptions{
			Target: n.dir, Files: map[string]string{"a/b/file": "content"},
		})
		test(t, n, f)
	})
}

// doneOf is the channel of a call that was abandoned.
func doneOf(t *testing.T, err error) <-chan struct{} {
	t.Helper()
	require.ErrorIs(t, err, mount.ErrUncertain)
	var lost interface{ Done() <-chan struct{} }
	require.ErrorAs(t, err, &lost)
	return lost.Done()
}

func TestPrepareInAHungVolumeReturnsAtItsDeadlineAndDelaysNoOther(t *testing.T) {
	withFUSE(t, func(t *testing.T, n *node, f *mounttest.FUSE) {
		n.prepare(n.subpath("a"))
		f.Hang(mounttest.FUSELookup, "a/b")
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() {
			_, err := n.subpaths.Prepare(ctx, n.subpath("a/b"))
			result <- err
		}()
		f.Await(mounttest.FUSELookup)
		cancel()
		err := <-result
		require.ErrorIs(t, err, context.Canceled)
		done := doneOf(t, err)
		assert.Equal(t, `prepare sub-path "a/b": it was cancelled`, Public(err))

		_, err = n.subpaths.Prepare(t.Context(), n.subpath("a"))
		require.ErrorIs(t, err, mount.ErrStuck, "no second call on the same volume")
		require.ErrorIs(t, err, mount.ErrTransient)
		local := n.subpath("web")
		local.VolumePath, local.VolumeName = n.outside, "local"
		n.prepare(local)
		require.NoError(t, n.subpaths.CleanContainer(t.Context(), local.Owner, mount.UnmountOptions{}))
		require.NoError(t, os.Remove(filepath.Join(n.outside, "web")))
		n.clean() // while the call hangs
		n.isClean()

		f.Heal()
		<-done
		n.isClean()
		n.prepare(n.subpath("a/b"))
		n.clean()
	})
}

// The directory is made after the caller has gone.
func TestSubpathThatIsMadeTooLateIsRemovedAgain(t *testing.T) {
	withFUSE(t, func(t *testing.T, n *node, f *mounttest.FUSE) {
		f.Hang(mounttest.FUSEMkdir)
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() {
			_, err := n.subpaths.Prepare(ctx, n.subpath("a/new"))
			result <- err
		}()
		f.Await(mounttest.FUSEMkdir)
		cancel()
		done := doneOf(t, <-result)
		f.Heal()
		<-done
		assert.NoDirExists(t, n.path("a/new"))
		n.isClean()
	})
}

func TestRootInAHungFilesystemReturnsAtItsDeadline(t *testing.T) {
	withFUSE(t, func(t *testing.T, n *node, f *mounttest.FUSE) {
		root := n.open(n.dir)
		for op, call := range map[mounttest.FUSEOp]func(ctx context.Context) error{
			mounttest.FUSELookup: func(ctx context.Context) error {
				file, err := root.OpenPath(ctx, "a", Directory)
				closeFile(file)
				return err
			},
			mounttest.FUSEOpen: func(ctx context.Context) error {
				file, err := root.Open(ctx, "a/b/file", RegularFile)
				closeFile(file)
				return err
			},
			mounttest.FUSEMkdir:   func(ctx context.Context) error { return root.MkdirAll(ctx, "new", MkdirOptions{}) },
			mounttest.FUSEUnlink:  func(ctx context.Context) error { return root.Remove(ctx, "a/b/file") },
			mounttest.FUSEOpendir: func(ctx context.Context) error { return root.RemoveAll(ctx, "a") },
		} {
			f.Hang(op)
			ctx, cancel := context.WithCancel(t.Context())
			result := make(chan error, 1)
			go func() { result <- call(ctx) }()
			f.Await(op)
			cancel()
			err := <-result
			done := doneOf(t, err)
			require.ErrorIs(t, call(t.Context()), mount.ErrStuck)
			f.Heal()
			<-done
			f.WriteFile("a/b/file", "content")
			file, err := root.Open(t.Context(), "a/b/file", RegularFile)
			require.NoError(t, err, "operation %d", op)
			closeFile(file)
		}
		require.NoError(t, root.Close())
	})
}

// F4, F8: what is mounted may be dead, or hang in every operation, when it is to be cleaned.
func TestCleanWorksWhateverHasBecomeOfTheVolume(t *testing.T) {
	for name, fault := range map[string]func(f *mounttest.FUSE){
		"hung":         func(f *mounttest.FUSE) { f.Hang(mounttest.FUSEAny) },
		"dead":         func(f *mounttest.FUSE) { f.Kill() },
		"stale":        func(f *mounttest.FUSE) { f.Fail(mounttest.FUSEAny, unix.ESTALE) },
		"I/O error":    func(f *mounttest.FUSE) { f.Fail(mounttest.FUSEAny, unix.EIO) },
		"gone beneath": func(f *mounttest.FUSE) { f.Fail(mounttest.FUSEAny, unix.ENOENT) },
	} {
		t.Run(name, func(t *testing.T) {
			withFUSE(t, func(t *testing.T, n *node, f *mounttest.FUSE) {
				n.prepare(n.subpath("a/b"))
				file := n.subpath("a/b/file")
				file.VolumeMountIndex = 1
				n.prepare(file)
				fault(f)
				n.restart()
				before := f.Count(mounttest.FUSEAny)
				require.NoError(t, n.subpaths.CleanVolume(t.Context(), Owner{PodDir: n.podDir, VolumeName: "data"}, mount.UnmountOptions{}))
				n.isClean()
				assert.Equal(t, before, f.Count(mounttest.FUSEAny), "the volume was not asked")
			})
		})
	}
}

func TestFaultsOfTheVolumeAreTheErrorAndLeaveNothing(t *testing.T) {
	withFUSE(t, func(t *testing.T, n *node, f *mounttest.FUSE) {
		for op, paths := range map[mounttest.FUSEOp]string{mounttest.FUSELookup: "a/b", mounttest.FUSEMkdir: "a/b/missing"} {
			for _, errno := range []unix.Errno{unix.EIO, unix.ESTALE, unix.ENOSPC, unix.EROFS, unix.EACCES} {
				f.Fail(op, errno)
				_, err := n.subpaths.Prepare(t.Context(), n.subpath(paths))
				require.ErrorIs(t, err, errno)
				require.NotErrorIs(t, err, mount.ErrUncertain)
				n.isClean()
				f.Heal()
			}
		}
	})
}

func TestFullOrReadOnlyVolumeIsTheErrorAndLeavesNothing(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		for want, option := range map[error]string{unix.ENOSPC: "nr_inodes=3", unix.EROFS: "ro"} {
			n.tmpfs(n.dir, option)
			_, err := n.subpaths.Prepare(t.Context(), n.subpath("a/b/c/d"))
			require.ErrorIs(t, err, want)
			n.isClean()
			assert.NoDirExists(t, n.path("a"))
			n.unmount(n.dir)
		}
	})
}

func TestFullPodDirectoryIsTheErrorAndCleaningStillWorks(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		n.mkdir("a")
		n.tmpfs(n.podDir, "nr_inodes=6") // its root, three directories, a mark and a mount point
		n.prepare(n.subpath("a"))
		second := n.subpath("a")
		second.VolumeMountIndex = 1
		_, err := n.subpaths.Prepare(t.Context(), second)
		require.ErrorIs(t, err, unix.ENOSPC)
		n.mountAt(n.target())
		n.clean()
		n.isClean()
		n.unmount(n.podDir)
	})
}

func TestLackOfDescriptorsIsNeverTakenForAnythingElse(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		n.mkdir("a/b/c", "top/x/y")
		n.prepare(n.subpath("a"))
		n.withFewDescriptors(0, func() {
			_, err := n.subpaths.Prepare(t.Context(), n.subpath("a/b"))
			require.ErrorIs(t, err, unix.EMFILE)
			require.ErrorIs(t, n.subpaths.CleanContainer(t.Context(), n.owner(), mount.UnmountOptions{}), unix.EMFILE)
			require.ErrorIs(t, n.root.RemoveAll(t.Context(), "top"), unix.EMFILE)
			require.ErrorIs(t, n.root.MkdirAll(t.Context(), "new/dir", MkdirOptions{}), unix.EMFILE)
		})
		n.mountAt(n.target())
		assert.DirExists(t, n.path("top/x/y"))
		assert.NoDirExists(t, n.path("new"))
		n.clean()
	})
}

// lateMounter is a mounter whose call is abandoned, and looks at its source later.
type lateMounter struct {
	mount.Interface
	waits, goOn chan struct{}
	source      chan error
}

func (l *lateMounter) Mount(ctx context.Context, request mount.Request) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-l.goOn
		_, err := os.Stat(filepath.Join(request.Source, "file"))
		l.source <- err
	}()
	close(l.waits)
	<-ctx.Done()
	return mount.NewAbandonedError("mount", request.Target, ctx.Err(), done)
}

// A mount that was abandoned must not find another file at the number of its descriptor.
func TestSourceStaysOpenUntilALostMountHasEnded(t *testing.T) {
	onANode(t, func(t *testing.T, n *node) {
		n.mkdir("a")
		n.write(n.path("a/file"))
		late := &lateMounter{Interface: n.mounter, waits: make(chan struct{}), goOn: make(chan struct{}), source: make(chan error, 1)}
		n.subpaths = NewSubpaths(late, SubpathsOptions{Without: n.without})
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() {
			_, err := n.subpaths.Prepare(ctx, n.subpath("a"))
			result <- err
		}()
		<-late.waits
		cancel()
		done := doneOf(t, <-result)
		select {
		case <-done:
			t.Error("it has not ended yet")
		default:
		}
		close(late.goOn)
		<-done
		require.NoError(t, <-late.source)
		n.restart()
		n.clean()
	})
}

func TestCallThatKeepsAskingToBeRepeatedIsGivenUp(t *testing.T) {
	calls := 0
	_, err := retry(func() (int, error) { calls++; return -1, unix.EAGAIN })
	require.ErrorIs(t, err, ErrRaced)
	assert.Equal(t, maxTries, calls)
	fd, err := retry(func() (int, error) {
		if calls--; calls > 0 {
			return -1, []error{unix.EAGAIN, unix.EINTR}[calls%2]
		}
		return 7, nil
	})
	require.NoError(t, err)
	assert.Equal(t, 7, fd)
}

func TestCallWhoseContextHasEndedBeginsNothing(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := w.root.MkdirAll(ctx, "a", MkdirOptions{})
		require.ErrorIs(t, err, mount.ErrTransient)
		require.ErrorIs(t, err, context.Canceled)
		assert.NoDirExists(t, w.path("a"))
		_, err = Open(ctx, w.dir, Options{Without: w.without})
		require.ErrorIs(t, err, mount.ErrTransient)
	})
}

func TestFileOfACallThatFailedIsClosed(t *testing.T) {
	opened, err := os.Open(os.TempDir())
	require.NoError(t, err)
	_, err = run(t.Context(), newCalls(), "key", closeFile, func(context.Context) (*os.File, error) { return opened, unix.EIO })
	require.ErrorIs(t, err, unix.EIO)
	require.ErrorIs(t, opened.Close(), os.ErrClosed)
}

// The result of an abandoned call is closed by the call.
func TestFileThatIsOpenedTooLateIsClosed(t *testing.T) {
	opened, err := os.Open(os.TempDir())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	goOn := make(chan struct{})
	_, err = run(ctx, newCalls(), "key", closeFile, func(context.Context) (*os.File, error) {
		cancel() // not before: the call would not begin
		<-goOn
		return opened, nil
	})
	done := doneOf(t, err)
	close(goOn)
	<-done
	require.ErrorIs(t, opened.Close(), os.ErrClosed)
	require.NotErrorIs(t, err, mount.ErrStuck)
}
