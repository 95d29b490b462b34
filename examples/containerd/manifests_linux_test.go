package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestManifestsAreFoundWhateverTheNameOfTheirDirectory(t *testing.T) {
	for _, name := range []string{"plain", "a[b]c", "[", "star*", "what?", `back\slash`} {
		dir := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("no manifest"), 0o600))
		text := "{apiVersion: v1, kind: Pod, metadata: {name: web}}"
		require.NoError(t, os.WriteFile(filepath.Join(dir, "web.yaml"), []byte(text), 0o600))
		objects, err := readManifests(dir)
		require.NoError(t, err, name)
		require.Len(t, objects, 1, name)
	}
}

func TestManifestsOfAMissingDirectoryAreUnknown(t *testing.T) {
	_, err := readManifests(filepath.Join(t.TempDir(), "missing"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
