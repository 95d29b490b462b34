package mount_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

func newFUSE(t *testing.T) *mounttest.FUSE {
	t.Helper()
	return mounttest.NewFUSE(t, mounttest.FUSEOptions{Files: map[string]string{"dir/sub/file": "content"}})
}

// faultWorld is a filesystem whose server is faulty, and a directory that is not in it.
type faultWorld struct {
	*mount.Mounter
	fuse *mounttest.FUSE
	root string
}

func newFaultWorld(t *testing.T, options mount.Options) faultWorld {
	t.Helper()
	w := faultWorld{Mounter: mount.New(options), fuse: newFUSE(t), root: t.TempDir()}
	require.NoError(t, os.Mkdir(w.root+"/source", 0o755))
	return w
}

func (w faultWorld) bind(ctx context.Context, source, target string) error {
	return w.Mount(ctx, mount.Request{Source: source, Target: target, Options: []string{"bind"}})
}

// asking are the calls that cannot be answered without the server: they walk through its names.
var asking = map[string]func(context.Context, faultWorld) error{
	"bind from": func(ctx context.Context, w faultWorld) error {
		return w.bind(ctx, w.fuse.Path()+"/dir", w.root+"/target")
	},
	"bind onto": func(ctx context.Context, w faultWorld) error {
		return w.bind(ctx, w.root+"/source", w.fuse.Path()+"/dir")
	},
	"tmpfs below": func(ctx context.Context, w faultWorld) error {
		return w.Mount(ctx, mount.Request{Target: w.fuse.Path() + "/dir/made/target", FSType: "tmpfs"})
	},
	"remount in": func(ctx context.Context, w faultWorld) error {
		return w.Mount(ctx, mount.Request{Target: w.fuse.Path() + "/dir", Options: []string{"remount", "ro"}})
	},
	"unmount in":   func(ctx context.Context, w faultWorld) error { return w.Unmount(ctx, w.fuse.Path()+"/dir", plain) },
	"remove in":    func(ctx context.Context, w faultWorld) error { return w.RemoveTarget(ctx, w.fuse.Path()+"/dir") },
	"remove below": func(ctx context.Context, w faultWorld) error { return w.RemoveTarget(ctx, w.fuse.Path()+"/dir/sub") },
	"is it in": func(ctx context.Context, w faultWorld) error {
		_, err := w.IsMountPoint(ctx, w.fuse.Path()+"/dir")
		return err
	},
	"look up in": func(ctx context.Context, w faultWorld) error {
		_, err := w.Lookup(ctx, w.fuse.Path()+"/dir")
		return err
	},
}

// eachAsking runs what needs the server, in each variant.
func eachAsking(t *testing.T, run func(t *testing.T, w faultWorld, call func(context.Context, faultWorld) error)) {
	t.Helper()
	for variant, without := range variants {
		for name, call := range asking {
			if name == "look up in" && without&mount.FeatureStatxMountRoot != 0 {
				continue // it only reads the table then
			}
			t.Run(variant+"/"+name, func(t *testing.T) { run(t, newFaultWorld(t, mount.Options{Without: without}), call) })
		}
	}
}

// quiet are the calls that need nothing of the server.
var quiet = map[string]func(*testing.T, faultWorld){
	"is it": func(t *testing.T, w faultWorld) { assert.True(t, isMounted(t, w.Mounter, w.fuse.Path())) },
	"look up": func(t *testing.T, w faultWorld) {
		found, err := w.Lookup(t.Context(), w.fuse.Path())
		require.NoError(t, err)
		assert.Equal(t, "mounttest", found.Source)
	},
	"list": func(t *testing.T, w faultWorld) { assert.Equal(t, 1, mountsAt(t, w.Mounter, w.fuse.Path())) },
	"references": func(t *testing.T, w faultWorld) {
		refs, err := w.GetMountRefs(t.Context(), w.fuse.Path())
		require.NoError(t, err)
		assert.Empty(t, refs)
	},
	"remove": func(t *testing.T, w faultWorld) {
		require.ErrorIs(t, w.RemoveTarget(t.Context(), w.fuse.Path()), unix.EBUSY)
	},
	"bind its root": func(t *testing.T, w faultWorld) {
		require.NoError(t, w.bind(t.Context(), w.fuse.Path(), w.root+"/copy"))
		require.NoError(t, mount.UnmountPath(t.Context(), w, w.root+"/copy", plain))
	},
	"make it read-only": func(t *testing.T, w faultWorld) {
		request := mount.Request{Target: w.fuse.Path(), Options: []string{"remount", "bind", "ro"}}
		require.NoError(t, w.Mount(t.Context(), request))
		assert.True(t, lineOf(t, w.Mounter, w.fuse.Path()).ReadOnly())
	},
	"other paths": func(t *testing.T, w faultWorld) {
		require.NoError(t, w.bind(t.Context(), w.root+"/source", w.root+"/other"))
		require.NoError(t, mount.UnmountPath(t.Context(), w, w.root+"/other", plain))
	},
	"unmount what is meant": func(t *testing.T, w faultWorld) {
		options := mount.UnmountOptions{Expect: lineOf(t, w.Mounter, w.fuse.Path()).Identity()}
		require.NoError(t, mount.UnmountPath(t.Context(), w, w.fuse.Path(), options))
	},
	"unmount": func(t *testing.T, w faultWorld) {
		require.NoError(t, mount.UnmountPath(t.Context(), w, w.fuse.Path(), plain))
	},
}

func TestHungServerHoldsUpNoCallThatDoesNotNeedIt(t *testing.T) {
	for variant, without := range variants {
		for name, call := range quiet {
			t.Run(variant+"/"+name, func(t *testing.T) {
				w := newFaultWorld(t, mount.Options{Without: without})
				before := w.fuse.Count(mounttest.FUSEAny)
				w.fuse.Hang(mounttest.FUSEAny)
				call(t, w)
				assert.Equal(t, before, w.fuse.Count(mounttest.FUSEAny), "the server was asked")
				assert.Empty(t, w.Abandoned())
			})
		}
	}
}

func TestDeadServerHoldsUpNoCallThatDoesNotNeedIt(t *testing.T) {
	for variant, without := range variants {
		for name, call := range quiet {
			t.Run(variant+"/"+name, func(t *testing.T) {
				w := newFaultWorld(t, mount.Options{Without: without})
				w.fuse.Kill()
				call(t, w)
			})
		}
	}
}

// TestCallIntoAHungServerIsLeftBehind lets every call hang that needs the server, and aborts it in the end.
func TestCallIntoAHungServerIsLeftBehind(t *testing.T) {
	eachAsking(t, func(t *testing.T, w faultWorld, call func(context.Context, faultWorld) error) {
		w.fuse.Hang(mounttest.FUSEAny)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		result := make(chan error, 1)
		go func() { result <- call(ctx, w) }()
		w.fuse.Await(mounttest.FUSEAny)
		cancel()
		err := <-result
		var lost *mount.AbandonedError
		require.ErrorAs(t, fmt.Errorf("set up: %w", err), &lost)
		require.ErrorIs(t, err, mount.ErrUncertain)
		require.ErrorIs(t, err, context.Canceled)
		require.Len(t, w.Abandoned(), 1)
		assert.Equal(t, lost.Path, w.Abandoned()[0].Path)
		quiet["list"](t, w)
		quiet["other paths"](t, w)
		w.fuse.Kill()
		<-lost.Done()
		assert.Empty(t, w.Abandoned())
		_, err = os.Lstat(w.root + "/target")
		require.ErrorIs(t, err, os.ErrNotExist, "the abandoned call has removed what it made")
	})
}

func TestCallIntoADeadServerFails(t *testing.T) {
	eachAsking(t, func(t *testing.T, w faultWorld, call func(context.Context, faultWorld) error) {
		for _, errno := range []unix.Errno{unix.EIO, unix.ESTALE} {
			w.fuse.Fail(mounttest.FUSELookup, errno)
			require.Error(t, call(t.Context(), w))
			w.fuse.Heal()
		}
		w.fuse.Kill()
		err := call(t.Context(), w)
		if !errors.Is(err, mount.ErrNotMounted) { // by the table, which knows all mounts
			require.ErrorIs(t, err, unix.ENOTCONN)
		}
		require.NotErrorIs(t, err, mount.ErrUncertain)
		_, err = os.Lstat(w.root + "/target")
		require.ErrorIs(t, err, os.ErrNotExist)
	})
}

// TestStuckPathRefusesTheNextCall also holds the bound on abandoned calls.
func TestStuckPathRefusesTheNextCall(t *testing.T) {
	w := newFaultWorld(t, mount.Options{MaxAbandoned: 1})
	w.fuse.Hang(mounttest.FUSEAny)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- asking["bind from"](ctx, w) }()
	w.fuse.Await(mounttest.FUSEAny)
	cancel()
	var lost *mount.AbandonedError
	require.ErrorAs(t, <-result, &lost)
	require.ErrorIs(t, asking["bind from"](t.Context(), w), mount.ErrStuck, "the same path")
	other := w.root + "/other"
	require.ErrorIs(t, w.bind(t.Context(), w.root+"/source", other), mount.ErrStuck, "one abandoned call is all that is allowed")
	quiet["list"](t, w)
	w.fuse.Kill()
	<-lost.Done()
	require.NoError(t, w.bind(t.Context(), w.root+"/source", other))
	require.NoError(t, w.Unmount(t.Context(), other, plain))
}

func TestForceThrowsOutWhoHangs(t *testing.T) {
	for variant, without := range variants {
		t.Run(variant, func(t *testing.T) {
			w := newFaultWorld(t, mount.Options{Without: without})
			w.fuse.Hang(mounttest.FUSEAny)
			hung := make(chan error, 1)
			go func() {
				_, err := os.ReadDir(w.fuse.Path())
				hung <- err
			}()
			w.fuse.Await(mounttest.FUSEAny)
			require.ErrorIs(t, w.Unmount(t.Context(), w.fuse.Path(), plain), unix.EBUSY)
			assert.Empty(t, hung)
			options := mount.UnmountOptions{Force: time.Millisecond}
			require.NoError(t, w.Unmount(t.Context(), w.fuse.Path(), options))
			require.Error(t, <-hung)
			assert.Zero(t, mountsAt(t, w.Mounter, w.fuse.Path()))
		})
	}
}

// TestMountThatCannotBeFoundIsStillTakenOff binds what its server then denies to have.
func TestMountThatCannotBeFoundIsStillTakenOff(t *testing.T) {
	for variant, without := range variants {
		t.Run(variant, func(t *testing.T) {
			w := newFaultWorld(t, mount.Options{Without: without})
			target := w.root + "/target"
			require.NoError(t, w.bind(t.Context(), w.fuse.Path()+"/dir", target))
			w.fuse.Fail(mounttest.FUSEAny, unix.ENOENT)
			_, err := os.Lstat(target)
			require.ErrorIs(t, err, os.ErrNotExist)
			assert.True(t, isMounted(t, w.Mounter, target))
			options := mount.UnmountOptions{Expect: lineOf(t, w.Mounter, target).Identity()}
			require.NoError(t, mount.UnmountPath(t.Context(), w, target, options))
			assert.Zero(t, mountsAt(t, w.Mounter, target))
		})
	}
}

// TestEveryDescriptorIsClosedOnExec looks at what is open while mounts are under way.
func TestEveryDescriptorIsClosedOnExec(t *testing.T) {
	eachAsking(t, func(t *testing.T, w faultWorld, call func(context.Context, faultWorld) error) {
		before := openFiles(t)
		w.fuse.Hang(mounttest.FUSEAny)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = call(t.Context(), w)
		}()
		w.fuse.Await(mounttest.FUSEAny)
		for number, link := range openFiles(t) {
			if _, old := before[number]; !old {
				checkCloseOnExec(t, number, link)
			}
		}
		w.fuse.Kill()
		<-ended
	})
}

func checkCloseOnExec(t *testing.T, number, link string) {
	t.Helper()
	fd, err := strconv.Atoi(number)
	require.NoError(t, err)
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err == nil { // what was open for the look at the directory is closed
		assert.NotZero(t, flags&unix.FD_CLOEXEC, "%s would be inherited", link)
	}
}

// TestServerThatSaysItsRootIsMissingIsAMount: only the directory that it is mounted in can say that nothing is there.
func TestServerThatSaysItsRootIsMissingIsAMount(t *testing.T) {
	f := newFUSE(t)
	m := mount.New(mount.Options{})
	f.Fail(mounttest.FUSEAny, unix.ENOENT)
	is, err := m.IsMountPoint(t.Context(), f.Path())
	require.NoError(t, err)
	assert.True(t, is)
	is, err = m.IsMountPoint(t.Context(), f.Path()+"-not")
	require.ErrorIs(t, err, unix.ENOENT)
	assert.False(t, is)
}
