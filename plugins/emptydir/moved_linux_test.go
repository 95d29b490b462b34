package emptydir_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/plugins/emptydir"
	"github.com/volumekit/volumekit/volume"
)

// A directory that another program has moved away counts as gone, and nothing of it is deleted.
func TestADirectoryThatWasMovedAwayIsKept(t *testing.T) {
	root := t.TempDir()
	host, err := volume.NewHost(volume.HostOptions{RootDir: root, NodeName: "node-1"})
	require.NoError(t, err)
	plugin := emptydir.New(emptydir.Options{})
	require.NoError(t, plugin.Init(t.Context(), host))
	spec := volume.NewSpecFromVolume(&v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
	mounter, err := plugin.NewMounter(spec, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "uid"}})
	require.NoError(t, err)
	require.NoError(t, mounter.SetUp(t.Context(), volume.MounterArgs{}))
	require.NoError(t, os.WriteFile(filepath.Join(mounter.GetPath(), "file"), nil, 0o600))
	away := filepath.Join(root, "away")
	require.NoError(t, os.Rename(mounter.GetPath(), away))
	unmounter, err := plugin.NewUnmounter("scratch", "uid")
	require.NoError(t, err)
	require.NoError(t, unmounter.TearDown(t.Context()))
	assert.FileExists(t, filepath.Join(away, "file"))
}
