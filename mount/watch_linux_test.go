package mount_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// watch runs Watch until the test ends, and returns its changes. The first is taken already.
func watch(t *testing.T, m *mount.Mounter) <-chan mount.TableChange {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	changes, ended := make(chan mount.TableChange), make(chan error, 1)
	go func() {
		ended <- m.Watch(ctx, func(c mount.TableChange) {
			select {
			case changes <- c:
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		assert.ErrorIs(t, <-ended, context.Canceled)
	})
	first := next(t, changes)
	assert.True(t, first.Whole, "the first change says that anything may be")
	return changes
}

func next(t *testing.T, changes <-chan mount.TableChange) mount.TableChange {
	t.Helper()
	select {
	case c := <-changes:
		return c
	case <-time.After(time.Minute):
		require.Fail(t, "no change was told of")
		return mount.TableChange{}
	}
}

// until takes changes until one is as wanted.
func until(t *testing.T, changes <-chan mount.TableChange, wanted func(mount.TableChange) bool) {
	t.Helper()
	for !wanted(next(t, changes)) {
	}
}

func attachedAt(path string) func(mount.TableChange) bool {
	return func(c mount.TableChange) bool {
		return c.Whole || slices.ContainsFunc(c.Attached, func(m mount.MountPoint) bool { return m.Path == path })
	}
}

// eachWatch is eachVariant, and one that Watch alone has.
func eachWatch(t *testing.T, run func(t *testing.T, m *mount.Mounter)) {
	t.Helper()
	eachVariant(t, run)
	t.Run("without fanotify", func(t *testing.T) { run(t, mount.New(mount.Options{Without: mount.FeatureFanotify})) })
}

func TestWatchTellsOfForeignMounts(t *testing.T) {
	eachWatch(t, func(t *testing.T, m *mount.Mounter) {
		dir := t.TempDir()
		changes := watch(t, m)
		mountForeign(t, dir)
		until(t, changes, attachedAt(dir))
		top := lineOf(t, m, dir)
		require.NoError(t, unix.Unmount(dir, unix.UMOUNT_NOFOLLOW))
		until(t, changes, func(c mount.TableChange) bool { return c.Whole || slices.Contains(c.Detached, top.UniqueID) })
		_, err := m.Lookup(t.Context(), dir)
		require.ErrorIs(t, err, mount.ErrNotMounted)
	})
}

// mountForeign mounts without this package.
func mountForeign(t *testing.T, dir string) {
	t.Helper()
	require.NoError(t, unix.Mount("foreign", dir, "tmpfs", 0, "size=64k"))
}

func TestWatchTellsWhichMount(t *testing.T) {
	m := watchable(t)
	dir := t.TempDir()
	changes := watch(t, m)
	mountForeign(t, dir)
	var found mount.MountPoint
	until(t, changes, func(c mount.TableChange) bool {
		assert.False(t, c.Whole)
		if len(c.Attached) > 0 {
			found = c.Attached[0]
		}
		return len(c.Attached) > 0
	})
	assert.Equal(t, dir, found.Path)
	assert.Equal(t, "foreign", found.Source)
	assert.Equal(t, lineOf(t, m, dir), found)
	require.NoError(t, unix.Unmount(dir, unix.UMOUNT_NOFOLLOW))
	until(t, changes, func(c mount.TableChange) bool {
		assert.Empty(t, c.Attached)
		return slices.Equal([]uint64{found.UniqueID}, c.Detached)
	})
}

// watchable returns a Mounter that is told which mounts have come and gone.
func watchable(t *testing.T) *mount.Mounter {
	t.Helper()
	mounttest.RequireMounts(t)
	if !mount.HasMountEvents() {
		t.Skip("missing: mount events of fanotify (Linux 6.15), or the right to them")
	}
	return mount.New(mount.Options{})
}

func TestWatchTellsOfMoves(t *testing.T) {
	m := watchable(t)
	root := t.TempDir()
	from, to := filepath.Join(root, "from"), filepath.Join(root, "to")
	require.NoError(t, os.Mkdir(from, 0o755))
	require.NoError(t, os.Mkdir(to, 0o755))
	mountForeign(t, from)
	before := lineOf(t, m, from)
	changes := watch(t, m)
	require.NoError(t, unix.Mount(from, to, "", unix.MS_MOVE, ""))
	until(t, changes, func(c mount.TableChange) bool {
		assert.Empty(t, c.Detached, "it is still there")
		return attachedAt(to)(c)
	})
	assert.Equal(t, before.UniqueID, lineOf(t, m, to).UniqueID)
	require.NoError(t, unix.Unmount(to, unix.UMOUNT_NOFOLLOW))
	until(t, changes, func(c mount.TableChange) bool { return slices.Contains(c.Detached, before.UniqueID) })
}

func TestWatchTellsOfOptions(t *testing.T) {
	eachWatch(t, func(t *testing.T, m *mount.Mounter) {
		dir := t.TempDir()
		mountForeign(t, dir)
		changes := watch(t, m)
		require.NoError(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
		until(t, changes, func(c mount.TableChange) bool { return c.Options })
		found, err := m.Lookup(t.Context(), dir)
		require.NoError(t, err)
		assert.True(t, found.ReadOnly())
		require.NoError(t, unix.Unmount(dir, unix.UMOUNT_NOFOLLOW))
	})
}

func TestWatchCoalescesAndSaysWhatWasLost(t *testing.T) {
	m := watchable(t)
	dir := t.TempDir()
	hold, held := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	calls := 0
	ended := make(chan error, 1)
	var lost mount.TableChange
	go func() {
		ended <- m.Watch(ctx, func(c mount.TableChange) {
			calls++
			if calls == 1 {
				close(held)
				<-hold
				return
			}
			if lost = c; c.Whole || len(c.Attached)+len(c.Detached) > 0 {
				cancel()
			}
		})
	}()
	<-held
	const kept = 16384 // events that the kernel keeps
	for range kept/2 + 10 {
		mountForeign(t, dir)
		require.NoError(t, unix.Unmount(dir, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH))
	}
	close(hold)
	require.ErrorIs(t, <-ended, context.Canceled)
	assert.True(t, lost.Whole, "events were lost")
	assert.Equal(t, 2, calls, "all are told of at once")
	assert.Empty(t, lost.Attached, "what has gone is not there")
}

func TestWatchEndsAtOnceWhenItsContextHas(t *testing.T) {
	mounttest.RequireMounts(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := mount.New(mount.Options{})
	err := m.Watch(ctx, func(mount.TableChange) { assert.Fail(t, "it was called") })
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, mount.ErrTransient)
}

func TestWatchLeavesNoDescriptor(t *testing.T) {
	eachWatch(t, func(t *testing.T, m *mount.Mounter) {
		before := openFiles(t)
		for range 10 {
			ctx, cancel := context.WithCancel(t.Context())
			require.ErrorIs(t, m.Watch(ctx, func(mount.TableChange) { cancel() }), context.Canceled)
		}
		assert.Empty(t, openedSince(t, before))
	})
}

// TestWatchExplainsChangesByTheirEvents: a caller reads all mounts when options may have changed. It must not do so for each mount
// that comes and goes. The kernel reports a mount by poll first and by its event a moment later, and may lose its processor in
// between. This test waits for the event without a limit.
func TestWatchExplainsChangesByTheirEvents(t *testing.T) {
	m := watchable(t)
	m.AwaitEvents()
	dir := t.TempDir()
	changes := watch(t, m)
	for range 20 {
		mountForeign(t, dir)
		id := lineOf(t, m, dir).UniqueID
		require.NoError(t, unix.Unmount(dir, unix.UMOUNT_NOFOLLOW))
		until(t, changes, func(c mount.TableChange) bool {
			require.NotEmpty(t, append(c.Detached, uniqueIDs(c.Attached)...), "nothing explains it: %+v", c)
			return slices.Contains(c.Detached, id)
		})
	}
}

func uniqueIDs(mounts []mount.MountPoint) (ids []uint64) {
	for _, m := range mounts {
		ids = append(ids, m.UniqueID)
	}
	return ids
}

// TestWhatGoesWhileEventsAreReadIsExplained: the table tells of it after it was asked, and the event is read nevertheless.
func TestWhatGoesWhileEventsAreReadIsExplained(t *testing.T) {
	m := watchable(t)
	dir := t.TempDir()
	wait, explain, left := m.WatchInSteps(t)
	mountForeign(t, dir)
	id := lineOf(t, m, dir).UniqueID
	assert.True(t, wait().Options)
	require.NoError(t, unix.Unmount(dir, unix.UMOUNT_NOFOLLOW))
	assert.Equal(t, []uint64{id}, explain().Detached)
	assert.False(t, left(), "the unmount would be told of once more, as a change of options")
}
