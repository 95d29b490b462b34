package mount_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// TestMountThatCannotBeLookedAtIsFoundInTheTable looks at a mount whose directory refuses to be searched, as a mount of
// a server that has gone refuses to be looked at.
func TestMountThatCannotBeLookedAtIsFoundInTheTable(t *testing.T) {
	mounttest.RequireRoot(t)
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		parent := filepath.Join(t.TempDir(), "parent")
		target, other := filepath.Join(parent, "target"), filepath.Join(parent, "other")
		mountTmpfs(t, m, target)
		require.NoError(t, os.Mkdir(other, 0o755))
		for dir := parent; dir != filepath.Dir(os.TempDir()); dir = filepath.Dir(dir) {
			require.NoError(t, os.Chmod(dir, 0o755)) // other users are to pass
		}
		require.NoError(t, os.Chmod(parent, 0))
		asNobody(t, func() {
			is, err := m.IsMountPointHere(t.Context(), target)
			require.NoError(t, err)
			assert.True(t, is)
			_, err = m.IsMountPointHere(t.Context(), other)
			require.ErrorIs(t, err, unix.EACCES, "what is not in the table keeps its error")
		})
	})
}

// asNobody runs do on a thread that has no right to files but that of everybody.
func asNobody(t *testing.T, do func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const nobody = 65534
	require.NoError(t, unix.Setfsuid(nobody))
	defer func() { require.NoError(t, unix.Setfsuid(0)) }()
	do()
}

// TestPathBeneathWhatIsMissingIsNoMountPoint looks beneath directories that are not there, and beneath a file.
func TestPathBeneathWhatIsMissingIsNoMountPoint(t *testing.T) {
	eachVariant(t, func(t *testing.T, m *mount.Mounter) {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
		for _, missing := range []string{"a", "a/b", "a/b/c/d"} {
			is, err := m.IsMountPointHere(t.Context(), filepath.Join(dir, missing))
			require.ErrorIs(t, err, unix.ENOENT, missing)
			assert.False(t, is, missing)
		}
		is, err := m.IsMountPointHere(t.Context(), filepath.Join(dir, "file", "a"))
		require.ErrorIs(t, err, unix.ENOTDIR)
		assert.False(t, is)
	})
}
