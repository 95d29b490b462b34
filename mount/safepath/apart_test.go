package safepath_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/mount/safepath"
)

func TestPathsAreKeptApartFromAboveBelowAndThroughLinks(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	kept := filepath.Join(dir, "kept")
	link := func(name, target string) string {
		t.Helper()
		require.NoError(t, os.Symlink(target, filepath.Join(dir, name)))
		return filepath.Join(dir, name)
	}
	outside := t.TempDir()
	toOutside := link("to-outside", outside)
	later := link("later", filepath.Join(kept, "not", "yet"))
	for _, path := range []string{
		kept, filepath.Join(kept, "a"), dir, "/", link("to-dir", dir), link("to-kept", "kept"), later,
		filepath.Join(later, "below"), link("again", "later"), link("relative", "kept/b"),
	} {
		_, err := safepath.ResolveApart(path, toOutside, kept)
		require.ErrorIs(t, err, safepath.ErrOverlap, path)
	}
	_, err = safepath.ResolveApart(filepath.Join(outside, "a"), kept, toOutside)
	require.ErrorIs(t, err, safepath.ErrOverlap, "links of what is kept apart are followed, too")

	found, err := safepath.ResolveApart(filepath.Join(link("elsewhere", "sibling"), "x"), kept)
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(dir, "sibling", "x"), found)
	_, err = safepath.ResolveApart(kept+"-sibling", kept)
	require.NoError(t, err)
	found, err = safepath.ResolveApart(kept)
	require.NoError(t, err)
	assert.Equal(t, kept, found)
}

func TestLinksWithoutEndAreRefused(t *testing.T) {
	dir := t.TempDir()
	last := filepath.Join(dir, "nothing")
	for i := range 60 {
		next := filepath.Join(dir, strconv.Itoa(i))
		require.NoError(t, os.Symlink(last, next))
		last = next
	}
	_, err := safepath.ResolveApart(last)
	require.Error(t, err)
	circle := filepath.Join(dir, "circle")
	require.NoError(t, os.Symlink("circle", circle))
	_, err = safepath.ResolveApart(circle)
	require.Error(t, err)
}
