package volumemanager

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/plugins/emptydir"
	"github.com/volumekit/volumekit/volume"
)

// TestAPodThatIsAddedAgainGetsEmptyDirectories of its own size, however soon it comes after the removal of the first.
func TestAPodThatIsAddedAgainGetsEmptyDirectories(t *testing.T) {
	n := newRealNode(t)
	host, err := volume.NewHost(volume.HostOptions{RootDir: filepath.Join(n.root, "lib"), NodeName: testNode})
	require.NoError(t, err)
	n.plugins = volume.NewVolumePluginMgr(host)
	require.NoError(t, n.plugins.InitPlugins(t.Context(), emptydir.New(emptydir.Options{})))
	m, stop := n.start(t)
	defer stop()
	m.PodsComplete()

	pod := podOf("a", "-disk", "-memory")
	name := volume.GetUniquePodName(pod)
	for round := range 20 {
		limit := *resource.NewQuantity(int64(round+1)<<20, resource.BinarySI)
		pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}
		pod.Spec.Volumes[1].VolumeSource = v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory, SizeLimit: &limit}}
		require.NoError(t, m.AddPod(t.Context(), pod))
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
		volumes := m.GetMountedVolumesForPod(name)
		require.Len(t, volumes, 2)
		for outer, v := range volumes {
			entries, err := os.ReadDir(v.Path)
			require.NoError(t, err)
			assert.Empty(t, entries, "%s in round %d", outer, round)
			require.NoError(t, os.WriteFile(filepath.Join(v.Path, "secret"), []byte("of the pod before"), 0o600))
		}
		var stat unix.Statfs_t
		require.NoError(t, unix.Statfs(volumes["memory"].Path, &stat))
		assert.Equal(t, limit.Value(), int64(stat.Blocks)*stat.Bsize)
		require.NoError(t, m.RemovePod(pod.UID))
	}
	require.NoError(t, m.WaitForUnmount(t.Context(), pod))
}
