package image_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/mount/image"
)

// A small file is replaced whole, also where a killed process has left half of the next one.
func TestReplace(t *testing.T) {
	path := t.TempDir()
	dir, err := image.OpenDir(path)
	require.NoError(t, err)
	defer dir.Close()
	require.NoError(t, os.WriteFile(filepath.Join(path, "name.new"), []byte("what a killed process has left"), 0o600))
	for _, content := range []string{"first", "2nd"} {
		require.NoError(t, dir.Replace("name", []byte(content)))
		got, err := os.ReadFile(filepath.Join(path, "name"))
		require.NoError(t, err)
		assert.Equal(t, content, string(got))
		assert.NoFileExists(t, filepath.Join(path, "name.new"))
	}
	require.NoError(t, os.Mkdir(filepath.Join(path, "taken"), 0o700))
	require.ErrorContains(t, dir.Replace("taken", []byte("x")), "taken")
	assert.NoFileExists(t, filepath.Join(path, "taken.new"))
}
