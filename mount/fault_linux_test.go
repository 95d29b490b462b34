package mount_test

import (
	"context"
	"maps"
	"os"
	"path/filepath"
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

		require.NoError(t, m.Unmount(t.Context(), target, mount.UnmountOptions{Lazy: true}))
		assert.False(t, isMounted(t, m, target))
		_, err = file.WriteString("still open")
		require.NoError(t, err)
	})
}

// TestForceDoesNotTakeALocalFilesystemAway waits each time until Unmount gives up.
func TestForceDoesNotTakeALocalFilesystemAway(t *testing.T) {
	mounttest.RequireMounts(t)
	for _, without := range []mount.Feature{0, mount.AllFeatures} {
		m, target := mount.New(mount.Options{Without: without}), filepath.Join(t.TempDir(), "target")
		mountTmpfs(t, m, target)
		file, err := os.Create(filepath.Join(target, "f"))
		require.NoError(t, err)
		err = m.Unmount(t.Context(), target, mount.UnmountOptions{Force: time.Millisecond})
		require.ErrorIs(t, err, unix.EBUSY)
		assert.True(t, isMounted(t, m, target))
		require.NoError(t, file.Close())
		require.NoError(t, m.Unmount(t.Context(), target, plain))
	}
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
		assert.Empty(t, openedSince(t, before))
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

// openedSince returns what is open and was not then. What was may have gone: garbage of other tests is collected.
func openedSince(t *testing.T, before map[string]string) map[string]string {
	t.Helper()
	now := openFiles(t)
	maps.DeleteFunc(now, func(number, link string) bool { return before[number] == link })
	return now
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
