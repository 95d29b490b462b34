package mount_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

var plain mount.UnmountOptions

// patience is how long a test waits for what other processes do, looking again after each tick.
const (
	patience = time.Minute
	tick     = 5 * time.Millisecond
)

func eachVariant(t *testing.T, run func(t *testing.T, m *mount.Mounter)) {
	t.Helper()
	mounttest.RequireMounts(t)
	for name, without := range variants {
		t.Run(name, func(t *testing.T) { run(t, mount.New(mount.Options{Without: without})) })
	}
}

func mountTmpfs(t *testing.T, m *mount.Mounter, target string) {
	t.Helper()
	require.NoError(t, m.Mount(t.Context(), mount.Request{Source: "memory", Target: target, FSType: "tmpfs"}))
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
}

func isMounted(t *testing.T, m *mount.Mounter, path string) bool {
	t.Helper()
	is, err := m.IsMountPoint(t.Context(), path)
	require.NoError(t, err)
	return is
}

func TestUnmountIsBusyByAnOpenFile(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		target := filepath.Join(t.TempDir(), "target")
		mountTmpfs(t, m, target)
		file, err := os.Create(filepath.Join(target, "f"))
		require.NoError(t, err)
		defer file.Close()

		err = m.Unmount(t.Context(), target, plain)
		require.ErrorIs(t, err, unix.EBUSY)
		require.NotErrorIs(t, err, mount.ErrUncertain)
		assert.True(t, isMounted(t, m, target))

		err = m.Unmount(t.Context(), target, mount.UnmountOptions{Force: time.Millisecond})
		require.ErrorIs(t, err, unix.EBUSY, "force does not take a local filesystem away")
		assert.True(t, isMounted(t, m, target))

		require.NoError(t, m.Unmount(t.Context(), target, mount.UnmountOptions{Lazy: true}))
		assert.False(t, isMounted(t, m, target))
		_, err = file.WriteString("still open")
		require.NoError(t, err)
	})
}

func TestUnmountWaitsForABusyMountBeforeTheForce(t *testing.T) {
	mounttest.RequireMounts(t)
	m := mount.New(mount.Options{})
	target := filepath.Join(t.TempDir(), "target")
	mountTmpfs(t, m, target)
	file, err := os.Create(filepath.Join(target, "f"))
	require.NoError(t, err)
	result := make(chan error, 1)
	go func() { result <- m.Unmount(t.Context(), target, mount.UnmountOptions{Force: time.Hour}) }()
	require.NoError(t, file.Close())
	require.NoError(t, <-result)
}

func TestNothingIsForcedWhenTheCallerHasGone(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		target := filepath.Join(t.TempDir(), "target")
		mountTmpfs(t, m, target)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, m.ForceHere(ctx, target), context.Canceled)
		assert.True(t, isMounted(t, m, target))
		require.NoError(t, m.ForceHere(t.Context(), target))
		assert.False(t, isMounted(t, m, target))
	})
}

func TestNoDescriptorIsLeft(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		root := t.TempDir()
		source, target := filepath.Join(root, "source"), filepath.Join(root, "target")
		require.NoError(t, os.Mkdir(source, 0o755))
		before := openFiles(t)
		for range 20 {
			roundTrip(t, m, source, target)
		}
		assert.Equal(t, before, openFiles(t))
	})
}

// roundTrip goes through every operation, with success and with failure.
func roundTrip(t *testing.T, m *mount.Mounter, source, target string) {
	t.Helper()
	ctx := t.Context()
	for _, request := range []mount.Request{
		{Source: source, Target: target, Options: []string{"bind", "ro"}},
		{Source: "memory", Target: target, FSType: "tmpfs", Options: []string{"size=64k"}},
		{Target: target, Options: []string{"remount", "ro"}},
	} {
		require.NoError(t, m.Mount(ctx, request))
	}
	for _, request := range []mount.Request{
		{Source: source + "/none", Target: target, Options: []string{"bind"}},
		{Source: "memory", Target: target, FSType: "tmpfs", Options: []string{"none"}},
		{Target: target + "/x/y", FSType: "tmpfs"},
		{Target: target, Options: []string{"remount", "none"}},
	} {
		require.Error(t, m.Mount(ctx, request))
	}
	require.Error(t, m.RemoveTarget(ctx, target))
	require.NoError(t, mount.UnmountPath(ctx, m, target, plain))
	require.ErrorIs(t, m.Unmount(ctx, target, plain), mount.ErrNotMounted)
	require.NoError(t, m.RemoveTarget(ctx, target))
}

// openFiles returns the open descriptors, without those of the mount table, one of which a Mounter keeps.
func openFiles(t *testing.T) map[string]string {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	open := map[string]string{}
	for _, name := range names {
		link, err := os.Readlink("/proc/self/fd/" + name.Name())
		if err == nil && !strings.HasSuffix(link, "/mountinfo") {
			open[name.Name()] = link
		}
	}
	return open
}

func TestFailedRemountLeavesTheMountAsItWas(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		target := filepath.Join(t.TempDir(), "target")
		mountTmpfs(t, m, target)
		request := mount.Request{Target: target, Options: []string{"remount", "ro", "no-such-option"}}
		require.ErrorIs(t, m.Mount(t.Context(), request), unix.EINVAL)
		require.NoError(t, os.WriteFile(filepath.Join(target, "f"), nil, 0o600))
		require.NoError(t, m.Unmount(t.Context(), target, plain))
	})
}

func TestErrorHoldsWhatTheKernelSaid(t *testing.T) {
	mounttest.RequireMounts(t)
	m := mount.New(mount.Options{})
	err := m.Mount(t.Context(), mount.Request{
		Target: filepath.Join(t.TempDir(), "target"), FSType: "tmpfs", Options: []string{"no-such-option"},
	})
	require.ErrorIs(t, err, unix.EINVAL)
	assert.Contains(t, err.Error(), "Unknown parameter")
}

func TestUnreachableMountIsNotMounted(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		outer := filepath.Join(t.TempDir(), "outer")
		require.NoError(t, os.MkdirAll(filepath.Join(outer, "inner"), 0o755))
		mountTmpfs(t, m, filepath.Join(outer, "inner"))
		mountTmpfs(t, m, outer)
		_, err := m.IsMountPoint(t.Context(), filepath.Join(outer, "inner"))
		require.ErrorIs(t, err, os.ErrNotExist, "the upper mount hides it")
		require.ErrorIs(t, m.Unmount(t.Context(), filepath.Join(outer, "inner"), plain), mount.ErrNotMounted)
		require.NoError(t, m.Unmount(t.Context(), outer, plain))
		assert.True(t, isMounted(t, m, filepath.Join(outer, "inner")))
		require.NoError(t, m.Unmount(t.Context(), filepath.Join(outer, "inner"), plain))
	})
}

func TestMountIsPrivateBelowASharedOne(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		shared := filepath.Join(t.TempDir(), "shared")
		mountTmpfs(t, m, shared)
		require.NoError(t, unix.Mount("", shared, "", unix.MS_SHARED, ""))
		target := filepath.Join(shared, "target")
		require.NoError(t, m.Mount(t.Context(), mount.Request{Source: shared, Target: target, Options: []string{"bind"}}))
		other := filepath.Join(shared, "other")
		options := []string{"bind", "rshared"}
		require.NoError(t, m.Mount(t.Context(), mount.Request{Source: shared, Target: other, Options: options}))
		table, err := m.List(t.Context())
		require.NoError(t, err)
		for _, mp := range table {
			switch mp.Path {
			case target:
				assert.Empty(t, mp.Propagation)
			case other:
				assert.NotEmpty(t, mp.Propagation)
			}
		}
		require.NoError(t, m.Unmount(t.Context(), target, plain))
		require.NoError(t, m.Unmount(t.Context(), other, plain))
	})
}

// swaps is how many times a mount is tried while its parent is swapped for a link.
const swaps = 5000

func TestASymlinkSwappedInIsNeverFollowed(t *testing.T) {
	mounttest.RequireMounts(t)
	for name, without := range map[string]mount.Feature{"openat2": 0, "walk": mount.FeatureOpenat2} {
		t.Run(name, func(t *testing.T) { swapRace(t, mount.New(mount.Options{Without: without})) })
	}
}

func swapRace(t *testing.T, m *mount.Mounter) {
	root, victim := t.TempDir(), t.TempDir()
	source, parent, link := filepath.Join(root, "source"), filepath.Join(root, "parent"), filepath.Join(root, "link")
	for _, dir := range []string{source, parent, filepath.Join(parent, "target"), filepath.Join(victim, "target")} {
		require.NoError(t, os.Mkdir(dir, 0o755))
	}
	require.NoError(t, os.Symlink(victim, link))
	stop := swapUntil(t, parent, link)
	landed, refused := 0, 0
	request := mount.Request{Source: source, Target: filepath.Join(parent, "target"), Options: []string{"bind"}}
	for range swaps {
		if err := m.Mount(t.Context(), request); err != nil {
			refused++
			require.True(t, errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENOENT), err)
			continue
		}
		landed++
		require.False(t, isMounted(t, m, filepath.Join(victim, "target")), "the mount has followed the link")
		_ = unix.Unmount(filepath.Join(parent, "target"), unix.MNT_DETACH)
		_ = unix.Unmount(filepath.Join(link, "target"), unix.MNT_DETACH)
	}
	stop()
	for _, path := range []string{parent, link} {
		for unix.Unmount(filepath.Join(path, "target"), unix.MNT_DETACH) == nil {
			continue
		}
	}
	assert.NotZero(t, landed)
	t.Logf("%d mounts landed, %d were refused", landed, refused)
}

// swapUntil exchanges two names all the time, until the function it returns is called.
func swapUntil(t *testing.T, one, two string) (stop func()) {
	t.Helper()
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, one, unix.AT_FDCWD, two, unix.RENAME_EXCHANGE)
			}
		}
	}()
	return func() { close(done); <-ended }
}

// hungFUSE is a filesystem whose server takes requests and never answers.
type hungFUSE struct {
	t      *testing.T
	server int
	path   string
}

func newHungFUSE(t *testing.T, m *mount.Mounter) *hungFUSE {
	t.Helper()
	mounttest.RequireRoot(t)
	server, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("missing: /dev/fuse: %v", err)
	}
	f := &hungFUSE{t: t, server: server, path: filepath.Join(t.TempDir(), "hung")}
	t.Cleanup(f.close)
	require.NoError(t, m.Mount(t.Context(), mount.Request{
		Source: "hung", Target: f.path, FSType: "fuse",
		Options: []string{"fd=" + strconv.Itoa(server), "rootmode=40000", "user_id=0", "group_id=0", "nosuid", "nodev"},
	}))
	unique := f.await() // FUSE_INIT, the one request that is answered
	var answer bytes.Buffer
	header := struct {
		Len    uint32
		Error  int32
		Unique uint64
	}{80, 0, unique}
	body := struct {
		Major, Minor, Readahead, Flags uint32
		Background, Congestion         uint16
		MaxWrite, Granularity          uint32
		Rest                           [36]byte
	}{Major: 7, Minor: 31, MaxWrite: 4096, Granularity: 1}
	require.NoError(t, binary.Write(&answer, binary.NativeEndian, header))
	require.NoError(t, binary.Write(&answer, binary.NativeEndian, body))
	_, err = unix.Write(server, answer.Bytes())
	require.NoError(t, err)
	return f
}

// await waits for the next request and returns its number.
func (f *hungFUSE) await() uint64 {
	f.t.Helper()
	const patience = 60_000 // milliseconds, after which something is wrong
	ready := []unix.PollFd{{Fd: int32(f.server), Events: unix.POLLIN}}
	n, err := unix.Poll(ready, patience)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll(ready, patience)
	}
	require.NoError(f.t, err)
	require.Positive(f.t, n, "the kernel asks for nothing")
	buffer := make([]byte, 1<<17)
	n, err = unix.Read(f.server, buffer)
	require.NoError(f.t, err)
	require.Greater(f.t, n, 40)
	return binary.NativeEndian.Uint64(buffer[8:])
}

func (f *hungFUSE) close() {
	_ = unix.Unmount(f.path, unix.MNT_DETACH|unix.MNT_FORCE)
	_ = unix.Close(f.server)
}

func TestHungFilesystemHoldsUpNoLook(t *testing.T) {
	for name, without := range variants {
		t.Run(name, func(t *testing.T) {
			m := mount.New(mount.Options{Without: without})
			f := newHungFUSE(t, m)
			assert.True(t, isMounted(t, m, f.path))
			_, err := m.GetMountRefs(t.Context(), f.path)
			require.NoError(t, err)
			require.ErrorIs(t, m.RemoveTarget(t.Context(), f.path), unix.EBUSY)
			require.NoError(t, mount.UnmountPath(t.Context(), m, f.path, plain))
		})
	}
}

func TestForceThrowsOutWhoHangs(t *testing.T) {
	m := mount.New(mount.Options{})
	f := newHungFUSE(t, m)
	hung := make(chan error, 1)
	go func() {
		_, err := os.ReadDir(f.path)
		hung <- err
	}()
	f.await()
	require.ErrorIs(t, m.Unmount(t.Context(), f.path, plain), unix.EBUSY)
	assert.Empty(t, hung)
	require.NoError(t, m.Unmount(t.Context(), f.path, mount.UnmountOptions{Force: time.Millisecond}))
	require.Error(t, <-hung)
	assert.False(t, isMounted(t, m, f.path))
}

func TestMountFromAHungFilesystemIsLost(t *testing.T) {
	for name, without := range variants {
		t.Run(name, func(t *testing.T) { lostMount(t, without) })
	}
}

func lostMount(t *testing.T, without mount.Feature) {
	m := mount.New(mount.Options{MaxLost: 1, Without: without})
	f := newHungFUSE(t, m)
	root := t.TempDir()
	source := filepath.Join(root, "source")
	require.NoError(t, os.Mkdir(source, 0o755))
	target := filepath.Join(root, "target")
	request := mount.Request{Source: filepath.Join(f.path, "dir"), Target: target, Options: []string{"bind"}}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- m.Mount(ctx, request) }()
	f.await() // the kernel asks for dir
	cancel()
	err := <-result
	var lost *mount.LostError
	require.ErrorAs(t, fmt.Errorf("set up: %w", err), &lost)
	require.ErrorIs(t, err, mount.ErrUncertain)
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, m.Lost(), 1)
	assert.Equal(t, target, m.Lost()[0].Path)

	other := mount.Request{Source: source, Target: filepath.Join(root, "other"), Options: []string{"bind"}}
	require.ErrorIs(t, m.Mount(t.Context(), request), mount.ErrStuck, "the same path")
	require.ErrorIs(t, m.Mount(t.Context(), other), mount.ErrStuck, "one lost call is all that is allowed")
	_, err = m.List(t.Context())
	require.NoError(t, err)

	second := mount.New(mount.Options{})
	require.NoError(t, second.Unmount(t.Context(), f.path, mount.UnmountOptions{Force: time.Millisecond}))
	<-lost.Done()
	assert.Empty(t, m.Lost())
	require.NoError(t, m.Mount(t.Context(), other))
	require.NoError(t, m.Unmount(t.Context(), filepath.Join(root, "other"), plain))
	_, err = os.Lstat(target)
	require.ErrorIs(t, err, os.ErrNotExist, "the lost mount has removed what it made")
}
