package journal

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/releasetest"
	"github.com/volumekit/volumekit/operationexecutor"
)

// TestWhatReleasesHaveWritten: a manager reads the records of each earlier version.
func TestWhatReleasesHaveWritten(t *testing.T) {
	options := func(dir string) Options {
		return Options{RuntimeDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state")}
	}
	releasetest.Check(t, func(t *testing.T, dir string) {
		t.Helper()
		j := newJournal(t, options(dir))
		j.Disk.BootID = func() (string, error) { return "1f8a7a53-8c0e-4d44-9a3c-1f2d3c4b5a69", nil }
		require.NoError(t, j.Open())
		for _, i := range []operationexecutor.Intent{attachIntent(""), stageIntent(), setUpIntent("a"), setUpIntent("b")} {
			require.NoError(t, j.Intend(t.Context(), i))
		}
		require.NoError(t, j.Conclude(t.Context(), attachIntent("/dev/loop1"), operationexecutor.IntentDone))
		require.NoError(t, j.Conclude(t.Context(), stageIntent(), operationexecutor.IntentDone))
		require.NoError(t, j.Conclude(t.Context(), setUpIntent("a"), operationexecutor.IntentDone))
		require.NoError(t, j.Close(t.Context()))
	}, func(t *testing.T, dir string) {
		t.Helper()
		j := newJournal(t, options(dir))
		j.Disk.BootID = func() (string, error) { return "1f8a7a53-8c0e-4d44-9a3c-1f2d3c4b5a69", nil }
		require.NoError(t, j.Open())
		t.Cleanup(func() { assert.NoError(t, j.Close(t.Context())) })
		found, damaged, err := j.Load(nil)
		require.NoError(t, err)
		require.Empty(t, damaged)
		require.Len(t, found, 1)
		r := found[0].Record
		assert.Equal(t, testVolume, r.Volume)
		assert.Equal(t, testPluginName, r.Plugin)
		assert.Equal(t, &Attachment{Node: testNode, DevicePath: "/dev/loop1"}, r.Attachment)
		assert.Equal(t, stageIntent().DeviceMountPath, r.Staging.Path)
		require.Len(t, r.Pods, 2)
		for _, pod := range []types.UID{"a", "b"} {
			assert.Equal(t, []string{"data"}, r.Pods[pod].OuterNames)
			assert.Equal(t, setUpIntent(string(pod)).MountPath, r.Pods[pod].Path)
			assert.Equal(t, string(pod), r.Pods[pod].Name)
		}
		spec, err := r.spec()
		require.NoError(t, err)
		assert.Equal(t, testSpec(), spec)
	})
}
