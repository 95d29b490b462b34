package releasetest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/releasetest"
)

func TestWhatAReleaseHasWrittenIsReadByTheNextVersion(t *testing.T) {
	t.Chdir(t.TempDir())
	written := "as v0.1.0"
	var seen []string
	check := func() {
		seen = nil
		releasetest.Check(t, func(t *testing.T, dir string) {
			t.Helper()
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "state"), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "state", "record"), []byte(written), 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600))
		}, func(t *testing.T, dir string) {
			t.Helper()
			data, err := os.ReadFile(filepath.Join(dir, "state", "record"))
			require.NoError(t, err)
			require.NoError(t, os.Remove(filepath.Join(dir, "state", "record")))
			seen = append(seen, string(data))
		})
	}
	check()
	assert.Equal(t, []string{"as v0.1.0"}, seen, "nothing is released")
	t.Setenv("VOLUMEKIT_RELEASE", "v0.1.0")
	check()
	assert.Equal(t, []string{"as v0.1.0", "as v0.1.0"}, seen)
	t.Setenv("VOLUMEKIT_RELEASE", "")
	written = "as v0.2.0"
	check()
	assert.Equal(t, []string{"as v0.1.0", "as v0.2.0"}, seen)
	files, err := filepath.Glob("testdata/released/v0.1.0/*")
	require.NoError(t, err)
	assert.Equal(t, []string{"testdata/released/v0.1.0/state"}, files, "no empty file, which git would keep and a lock would be")
}
