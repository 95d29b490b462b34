package mount_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

// TestLookBetweenTwoCallsSeesThatAnotherMountWouldBeHit does, between the calls of an unmount that is told what is meant,
// all that can bring another mount to its place.
func TestLookBetweenTwoCallsSeesThatAnotherMountWouldBeHit(t *testing.T) {
	for name, meanwhile := range map[string]func(t *testing.T, target, elsewhere string){
		"mounted on top": func(t *testing.T, target, _ string) { mountForeign(t, target) },
		"mounted below":  func(t *testing.T, target, _ string) { mountForeign(t, filepath.Join(target, "below")) },
		"moved away": func(t *testing.T, target, elsewhere string) {
			require.NoError(t, unix.Mount(target, elsewhere, "", unix.MS_MOVE, ""))
			mountForeign(t, target)
		},
		"moved away, and nothing there": func(t *testing.T, target, elsewhere string) {
			require.NoError(t, unix.Mount(target, elsewhere, "", unix.MS_MOVE, ""))
		},
		"unmounted": func(t *testing.T, target, _ string) {
			require.NoError(t, unix.Unmount(target, unix.UMOUNT_NOFOLLOW))
			mountForeign(t, target)
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachVariant(t, func(t *testing.T, m *mount.Mounter) {
				target, elsewhere := filepath.Join(t.TempDir(), "target"), t.TempDir()
				mountTmpfs(t, m, target)
				require.NoError(t, os.Mkdir(filepath.Join(target, "below"), 0o755))
				for _, dir := range []string{filepath.Join(target, "below"), target, elsewhere} {
					t.Cleanup(func() {
						for unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil {
							continue
						}
					})
				}
				takedown, err := m.BeginUnmount(t.Context(), target, lineOf(t, m, target).Identity())
				require.NoError(t, err)
				defer takedown.Close()
				require.ErrorIs(t, takedown.Mark(), unix.EAGAIN)
				require.NoError(t, takedown.CheckOnTop(), "nothing has come yet")
				meanwhile(t, target, elsewhere)
				require.Error(t, takedown.CheckOnTop())
			})
		})
	}
}

func TestLookBetweenTwoCallsDoesNotUseTheMount(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		target := filepath.Join(t.TempDir(), "target")
		mountTmpfs(t, m, target)
		takedown, err := m.BeginUnmount(t.Context(), target, lineOf(t, m, target).Identity())
		require.NoError(t, err)
		defer takedown.Close()
		require.ErrorIs(t, takedown.Mark(), unix.EAGAIN)
		require.NoError(t, takedown.CheckOnTop())
		require.NoError(t, takedown.Mark(), "the mark is still there")
		assert.False(t, isMounted(t, m, target))
	})
}

// TestUserOfAMountRemovesTheMark holds what the unmount of a mount that is meant is built on.
func TestUserOfAMountRemovesTheMark(t *testing.T) {
	m := statmounts(t)
	target, elsewhere := filepath.Join(t.TempDir(), "target"), t.TempDir()
	mountTmpfs(t, m, target)
	takedown, err := m.BeginUnmount(t.Context(), target, lineOf(t, m, target).Identity())
	require.NoError(t, err)
	defer takedown.Close()
	for name, use := range map[string]func() error{
		"walk": func() error {
			_, err := os.Lstat(target)
			return err
		},
		"move away and back": func() error {
			if err := unix.Mount(target, elsewhere, "", unix.MS_MOVE, ""); err != nil {
				return err
			}
			return unix.Mount(elsewhere, target, "", unix.MS_MOVE, "")
		},
		"mount on top and unmount": func() error {
			if err := unix.Mount("foreign", target, "tmpfs", 0, ""); err != nil {
				return err
			}
			return unix.Unmount(target, 0)
		},
	} {
		require.ErrorIs(t, takedown.Mark(), unix.EAGAIN, name)
		require.NoError(t, use(), name)
	}
	require.ErrorIs(t, takedown.Mark(), unix.EAGAIN)
	require.NoError(t, takedown.Mark())
}

// TestMountThatIsStillThereIsNotTakenForUnmounted looks after an unmount that has had no effect.
func TestMountThatIsStillThereIsNotTakenForUnmounted(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		target := filepath.Join(t.TempDir(), "target")
		mountTmpfs(t, m, target)
		id := lineOf(t, m, target).UniqueID
		for _, known := range []uint64{id, 0} {
			err := m.VerifyGone(t.Context(), target, known)
			require.ErrorIs(t, err, unix.EBUSY)
			require.ErrorIs(t, err, mount.ErrUncertain)
		}
		require.NoError(t, m.Unmount(t.Context(), target, plain))
		for _, known := range []uint64{id, 0} {
			require.NoError(t, m.VerifyGone(t.Context(), target, known))
		}
	})
}

// TestMountWithABusyCopyInAPeerIsBusy has the kernel look at the copies, too, when it is told which mount is meant.
func TestMountWithABusyCopyInAPeerIsBusy(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		host, agent := filepath.Join(t.TempDir(), "host"), filepath.Join(t.TempDir(), "agent")
		mountTmpfs(t, m, host)
		require.NoError(t, unix.Mount("", host, "", unix.MS_SHARED, ""))
		require.NoError(t, m.Mount(t.Context(), mount.Request{Source: host, Target: agent, Options: []string{"bind", "shared"}}))
		target := filepath.Join(agent, "target")
		require.NoError(t, m.Mount(t.Context(), mount.Request{Target: target, FSType: "tmpfs"}))
		file, err := os.Create(filepath.Join(host, "target", "f"))
		require.NoError(t, err)
		defer file.Close()
		ours := mount.UnmountOptions{Expect: lineOf(t, m, target).Identity()}
		require.ErrorIs(t, m.Unmount(t.Context(), target, ours), unix.EBUSY)
		assert.True(t, isMounted(t, m, target))
		require.NoError(t, file.Close())
		require.NoError(t, m.Unmount(t.Context(), target, ours))
		assert.False(t, isMounted(t, m, filepath.Join(host, "target")))
		require.NoError(t, m.Unmount(t.Context(), agent, plain))
		require.NoError(t, m.Unmount(t.Context(), host, plain))
	})
}
