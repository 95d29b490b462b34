package volumemanager

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins/emptydir"
	"github.com/volumekit/volumekit/plugins/hostpath"
	"github.com/volumekit/volumekit/volume"
)

// partsNode is a node with host paths and empty directories, and a directory of the host.
type partsNode struct {
	*pluginsNode
	dir string
}

func newPartsNode(t *testing.T) *partsNode {
	t.Helper()
	mounttest.RequireMounts(t)
	n := &partsNode{pluginsNode: newPluginsNode(t), dir: t.TempDir()}
	host, err := volume.NewHost(volume.HostOptions{RootDir: filepath.Join(n.root, "lib"), NodeName: testNode})
	require.NoError(t, err)
	n.plugins = volume.NewVolumePluginMgr(host)
	require.NoError(t, n.plugins.InitPlugins(t.Context(), hostpath.New(hostpath.Options{}), emptydir.New(emptydir.Options{})))
	return n
}

// withParts has the container mount a part of each volume of the pod.
func withParts(pod *v1.Pod) *v1.Pod {
	for i := range pod.Spec.Containers[0].VolumeMounts {
		pod.Spec.Containers[0].VolumeMounts[i].SubPath = "part"
	}
	return pod
}

func (n *partsNode) hostPathPod(name string) *v1.Pod {
	pod := podOf(name, "-data")
	pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: n.dir}}
	return withParts(pod)
}

func isMounted(t *testing.T, path string) bool {
	t.Helper()
	return idAt(t, path) != (mount.Identity{})
}

// TestPartsOfTwoVolumesOfOneNameAreKeptApart: those of one plugin stay when the volume of another goes.
func TestPartsOfTwoVolumesOfOneNameAreKeptApart(t *testing.T) {
	n := newPartsNode(t)
	n.bind("x", &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{
		PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: n.dir}},
	}})
	m, stop := n.start(t)
	defer stop()
	m.PodsComplete()
	pod := withParts(podOf("a", "x", "-pv-x"))
	pod.Spec.Volumes[1].VolumeSource = v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}
	require.NoError(t, m.AddPod(t.Context(), pod))
	require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
	volumes, err := m.ContainerMounts(t.Context(), pod, "main")
	require.NoError(t, err)
	require.Len(t, volumes.Mounts, 2)
	sources := map[string]string{}
	for _, mounted := range volumes.Mounts {
		sources[mounted.Name] = mounted.Source
		require.True(t, isMounted(t, mounted.Source))
	}
	assert.DirExists(t, filepath.Join(n.dir, "part"))

	without := pod.DeepCopy()
	without.Spec.Volumes = without.Spec.Volumes[:1]
	without.Spec.Containers[0].VolumeMounts = without.Spec.Containers[0].VolumeMounts[:1]
	require.NoError(t, m.UpdatePod(t.Context(), without))
	eventually(t, m, func() bool { return len(m.PodStatus(pod.UID)) == 1 })
	assert.False(t, isMounted(t, sources["pv-x"]))
	assert.True(t, isMounted(t, sources["x"]), "the other volume is used on")
	require.NoError(t, m.RemovePod(pod.UID))
	require.NoError(t, m.WaitForUnmount(t.Context(), pod))
	assert.NoDirExists(t, filepath.Join(n.plugins.Host().GetPodsDir(), string(pod.UID)))
}

// TestAPodWhoseVolumesAreAllHostPathsMayHaveParts of them; a restart does not take them for orphans, and nothing of them stays.
func TestAPodWhoseVolumesAreAllHostPathsMayHaveParts(t *testing.T) {
	n := newPartsNode(t)
	n.options.Orphans = OrphansAreRemoved
	m, stop := n.start(t)
	pod := n.hostPathPod("a")
	require.NoError(t, m.AddPod(t.Context(), pod))
	require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
	volumes, err := m.ContainerMounts(t.Context(), pod, "main")
	require.NoError(t, err)
	part := volumes.Mounts[0].Source
	require.NoError(t, os.WriteFile(filepath.Join(part, "file"), []byte("content"), 0o600))
	assert.Equal(t, "content", read(t, filepath.Join(n.dir, "part/file")))
	stop()

	m, stop = n.start(t)
	defer stop()
	require.NoError(t, m.AddPod(t.Context(), n.hostPathPod("b")))
	looked(t, m)
	assert.Empty(t, m.Status().Orphans)
	require.NoError(t, m.AddPod(t.Context(), pod))
	m.PodsComplete()
	require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
	assert.True(t, isMounted(t, part))
	require.NoError(t, m.RemovePod(pod.UID))
	require.NoError(t, m.WaitForUnmount(t.Context(), pod))
	assert.NoDirExists(t, filepath.Join(n.plugins.Host().GetPodsDir(), string(pod.UID)))
	assert.Equal(t, "content", read(t, filepath.Join(n.dir, "part/file")))
}
