package safepath_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/mount/safepath"
)

func TestATreeIsRemovedByItsPath(t *testing.T) {
	mounttest.RequireMounts(t) // where a mistake can remove nothing of the machine
	dir := t.TempDir()
	tree, beside := filepath.Join(dir, "tree"), filepath.Join(dir, "beside")
	require.NoError(t, os.MkdirAll(filepath.Join(tree, "a", "b"), 0o755))
	require.NoError(t, os.Mkdir(beside, 0o755))
	require.NoError(t, os.Symlink(beside, filepath.Join(tree, "a", "link")))
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(tree, link))
	err := safepath.RemoveTree(t.Context(), filepath.Join(link, "a"), safepath.Options{})
	require.ErrorIs(t, err, safepath.ErrEscapes)
	require.NoError(t, safepath.RemoveTree(t.Context(), tree+"/", safepath.Options{}))
	assert.NoDirExists(t, tree)
	assert.DirExists(t, beside)
	require.NoError(t, safepath.RemoveTree(t.Context(), tree, safepath.Options{}))
	require.NoError(t, safepath.RemoveTree(t.Context(), filepath.Join(tree, "gone"), safepath.Options{}))
}
