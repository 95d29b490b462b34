package rootlock

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/volume"
)

// requireLocks skips the test on a platform that cannot lock directories.
func requireLocks(t *testing.T) {
	lock, err := record.Lock(t.TempDir())
	if errors.Is(err, record.ErrUnsupported) {
		t.Skip("missing: locks of directories on " + runtime.GOOS)
	}
	require.NoError(t, err)
	require.NoError(t, lock.Close())
}

func TestARootIsOneLocksAtATime(t *testing.T) {
	requireLocks(t)
	root := filepath.Join(t.TempDir(), "lib")
	first, second := &Lock{Path: root, Make: true}, &Lock{Path: root}
	require.NoError(t, first.Take())
	require.NoError(t, first.Take(), "it has it already")
	require.ErrorIs(t, second.Take(), volume.ErrInUse)
	require.NoError(t, second.Release(), "which it has not")
	require.ErrorIs(t, second.Take(), volume.ErrInUse)
	require.NoError(t, first.Release())
	require.NoError(t, second.Take())
	require.NoError(t, second.Release())
}

func TestARootIsMadeOnlyWhereThatIsAskedFor(t *testing.T) {
	requireLocks(t)
	root := filepath.Join(t.TempDir(), "lib")
	lock := &Lock{Path: root}
	require.NoError(t, lock.Take())
	assert.NoDirExists(t, root)
	require.NoError(t, os.Mkdir(root, 0o700))
	require.NoError(t, lock.Take(), "it is locked as soon as it is there")
	require.ErrorIs(t, (&Lock{Path: root}).Take(), volume.ErrInUse)
	require.NoError(t, lock.Release())
}
