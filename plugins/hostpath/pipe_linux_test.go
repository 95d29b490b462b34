package hostpath

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func makePipe(t *testing.T, path string) {
	t.Helper()
	require.NoError(t, unix.Mkfifo(path, 0o600))
}

// Another process may put a pipe there between the check and the creation. It must not be opened: that would block.
func TestMakingAFileOpensNothingThatIsThere(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	makePipe(t, pipe)
	require.ErrorIs(t, nodeFiles{}.CreateApart(t.Context(), pipe, 0o644), fs.ErrExist)

	target := filepath.Join(t.TempDir(), "target")
	link := filepath.Join(t.TempDir(), "dangling")
	require.NoError(t, os.Symlink(target, link))
	require.ErrorIs(t, nodeFiles{}.CreateApart(t.Context(), link, 0o644), fs.ErrExist)
	require.NoFileExists(t, target)
}
