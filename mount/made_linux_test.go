package mount_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

func TestWhatIsMadeIsToldByItsOwnIdentity(t *testing.T) {
	mounttest.RequireMounts(t)
	for name, without := range variants {
		t.Run(name, func(t *testing.T) {
			m := mount.New(mount.Options{Without: without})
			dir := t.TempDir()
			told := make(map[string]mount.MountPoint)
			ctx := mount.WithMade(t.Context(), func(target string, made mount.MountPoint) { told[target] = made })
			memory, bind := filepath.Join(dir, "memory"), filepath.Join(dir, "bind")
			require.NoError(t, os.Mkdir(filepath.Join(dir, "source"), 0o700))
			for target, request := range map[string]mount.Request{
				memory: {Source: "ours", FSType: "tmpfs"},
				bind:   {Source: filepath.Join(dir, "source"), Options: []string{"bind", "ro"}},
			} {
				request.Target = target
				require.NoError(t, m.Mount(ctx, request))
				t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
				found, err := m.Lookup(t.Context(), target)
				require.NoError(t, err)
				assert.Equal(t, found.Identity(), told[target].Identity())
			}
			require.NoError(t, m.Mount(ctx, mount.Request{Target: bind, Options: []string{"remount", "bind", "rw"}}))
			require.Error(t, m.Mount(ctx, mount.Request{Source: "x", Target: filepath.Join(dir, "x"), FSType: "nosuchfs"}))
			assert.Len(t, told, 2, "a remount makes none, and neither does what fails")
			require.NoError(t, m.Mount(t.Context(), mount.Request{Source: "more", Target: memory, FSType: "tmpfs"}))
			require.NoError(t, unix.Unmount(memory, 0))
			mount.ReportMade(t.Context(), memory, mount.MountPoint{}) // no function in the context
			assert.Equal(t, "ours", told[memory].Source)
		})
	}
}

func TestWhatIsRemovedIsTold(t *testing.T) {
	mounttest.RequireMounts(t)
	m, dir := mount.New(mount.Options{}), t.TempDir()
	var told []string
	ctx := mount.WithRemoved(t.Context(), func(target string) { told = append(told, target) })
	memory, full := filepath.Join(dir, "memory"), filepath.Join(dir, "full")
	require.NoError(t, m.Mount(ctx, mount.Request{Source: "ours", Target: memory, FSType: "tmpfs"}))
	require.NoError(t, os.MkdirAll(filepath.Join(full, "more"), 0o700))

	require.ErrorIs(t, m.RemoveTarget(ctx, memory), unix.EBUSY)
	require.ErrorIs(t, m.RemoveTarget(ctx, full), unix.ENOTEMPTY)
	require.NoError(t, m.RemoveTarget(ctx, filepath.Join(dir, "none")))
	require.NoError(t, m.Unmount(ctx, memory, mount.UnmountOptions{}))
	assert.Empty(t, told, "nothing was removed")
	require.NoError(t, m.RemoveTarget(ctx, memory))
	require.NoError(t, m.RemoveTarget(t.Context(), filepath.Join(full, "more")), "no function in the context")
	assert.Equal(t, []string{memory}, told)
}
