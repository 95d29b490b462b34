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
	require.NoError(t, first.Take(t.Context()))
	require.NoError(t, first.Take(t.Context()), "it has it already")
	require.ErrorIs(t, second.Take(t.Context()), volume.ErrInUse)
	require.NoError(t, second.Release(), "which it has not")
	require.ErrorIs(t, second.Take(t.Context()), volume.ErrInUse)
	require.NoError(t, first.Release())
	require.NoError(t, second.Take(t.Context()))
	require.NoError(t, second.Release())
}

func TestARootIsMadeOnlyWhereThatIsAskedFor(t *testing.T) {
	requireLocks(t)
	root := filepath.Join(t.TempDir(), "lib")
	lock := &Lock{Path: root}
	require.NoError(t, lock.Take(t.Context()))
	assert.NoDirExists(t, root)
	require.NoError(t, os.Mkdir(root, 0o700))
	require.NoError(t, lock.Take(t.Context()), "it is locked as soon as it is there")
	require.ErrorIs(t, (&Lock{Path: root}).Take(t.Context()), volume.ErrInUse)
	require.NoError(t, lock.Release())
}

func TestARootIsKnownAgainWhereverItsLockIs(t *testing.T) {
	requireLocks(t)
	for name, lock := range map[string]*Lock{"a lock of its own": {Make: true}, "a lock of the records": {HasRecords: true}} {
		t.Run(name, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "lib")
			lock.Path = root
			require.NoError(t, lock.Check(t.Context()), "nothing is locked")
			require.NoError(t, os.MkdirAll(root, 0o700))
			require.NoError(t, lock.Take(t.Context()))
			require.NoError(t, lock.Check(t.Context()))
			require.NoError(t, os.Rename(root, root+".old"))
			err := lock.Take(t.Context())
			require.ErrorIs(t, err, ErrReplaced)
			require.ErrorIs(t, err, os.ErrNotExist)
			require.NoError(t, os.Symlink(root+".old", root))
			require.NoError(t, lock.Check(t.Context()), "it is the same directory")
			require.NoError(t, os.Remove(root))
			require.NoError(t, os.Mkdir(root, 0o700))
			require.ErrorIs(t, lock.Take(t.Context()), ErrReplaced)
			require.NoError(t, lock.Release())
			require.NoError(t, lock.Check(t.Context()), "nothing is locked any more")
		})
	}
}
