package hostpath

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/mount/safepath"
)

// swapped swaps a directory for a link when what is at a path has been looked at, which is after the path was compared.
type swapped struct {
	Files
	t       *testing.T
	dir, to string
	isDone  bool
}

func (s *swapped) Stat(path string) (fs.FileInfo, error) {
	info, err := s.Files.Stat(path)
	if !s.isDone {
		s.isDone = true
		require.NoError(s.t, os.Remove(s.dir))
		require.NoError(s.t, os.Symlink(s.to, s.dir))
	}
	return info, err
}

func TestNothingIsMadeInTheNodesRootThroughALinkThatIsSwappedIn(t *testing.T) {
	mounttest.RequireMounts(t) // where a mistake can reach nothing of the machine
	for name, want := range map[string]v1.HostPathType{
		"new": v1.HostPathDirectoryOrCreate, "new/below": v1.HostPathDirectoryOrCreate, "file": v1.HostPathFileOrCreate,
	} {
		plugin, root := newPlugin(t, Options{})
		pods := filepath.Join(root, "pods")
		require.NoError(t, os.MkdirAll(pods, 0o750))
		dir := filepath.Join(t.TempDir(), "dir")
		require.NoError(t, os.Mkdir(dir, 0o755))
		plugin.files = &swapped{Files: plugin.files, t: t, dir: dir, to: pods}
		err := setUp(t.Context(), t, plugin, spec(filepath.Join(dir, name), want))
		require.ErrorIs(t, err, safepath.ErrOverlap, name)
		left, err := os.ReadDir(pods)
		require.NoError(t, err)
		assert.Empty(t, left, name)
	}
}

func TestNothingIsMadeThroughALinkToNothing(t *testing.T) {
	mounttest.RequireMounts(t)
	for name, want := range map[string]v1.HostPathType{
		"link": v1.HostPathDirectoryOrCreate, "link/below": v1.HostPathDirectoryOrCreate, "link/": v1.HostPathFileOrCreate,
	} {
		plugin, _ := newPlugin(t, Options{})
		dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "nothing")
		require.NoError(t, os.Symlink(outside, filepath.Join(dir, "link")))
		require.Error(t, setUp(t.Context(), t, plugin, spec(filepath.Join(dir, name), want)), name)
		assert.NoFileExists(t, outside, name)
		assert.NoDirExists(t, outside, name)
	}
}
