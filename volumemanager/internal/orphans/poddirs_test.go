package orphans

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An empty directory that cannot be removed is logged. One that is missing or not empty is not.
func TestADirectoryThatCannotBeRemovedIsToldOf(t *testing.T) {
	var log strings.Builder
	l := New(Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	dir := filepath.Join(t.TempDir(), "pod")
	file := filepath.Join(dir, "volumes")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	l.removeEmptyDirs(filepath.Join(dir, "plugins"), dir)
	assert.Empty(t, log.String())
	l.removeEmptyDir(file)
	assert.Contains(t, log.String(), "not a directory")
	assert.FileExists(t, file)
}
