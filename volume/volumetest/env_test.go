package volumetest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// The directory of a test is removed with all that is in it: a mount that a broken plugin leaves there would be emptied.
func TestWhatABrokenPluginLeavesMountedIsTakenOffBeforeTheDirectoryIsEmptied(t *testing.T) {
	mounttest.RequireMounts(t)
	mounter := mount.New(mount.Options{})
	data := t.TempDir()
	canary := filepath.Join(data, "canary")
	require.NoError(t, os.WriteFile(canary, []byte("alive"), 0o600))
	c := Case{Rule: "M1", Group: "mount", run: func(e *env) {
		require.NoError(t, os.MkdirAll(e.root, 0o750))
		require.NoError(t, mounter.Mount(t.Context(), mount.Request{
			Source: data, Target: filepath.Join(e.root, "left"), Options: []string{"bind"},
		}))
		e.broken("the plugin is broken")
	}}
	t.Run("broken", func(t *testing.T) {
		require.NotEmpty(t, try(t, c, fakeConfig(mounter, 0)).failures)
	})
	assert.FileExists(t, canary)
}
