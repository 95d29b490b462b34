package volumemanager

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins/emptydir"
	"github.com/volumekit/volumekit/plugins/files"
	"github.com/volumekit/volumekit/plugins/local"
	"github.com/volumekit/volumekit/volume"
)

const kubeletPod = "0c4f0d6e-8a34-4c0e-9a57-8d2b8b0d5c11"

// kubeletRoot is a root that kubelet has left without a drain: a pod's emptyDir with data, its token, its local volume, and
// a staged volume of a driver.
type kubeletRoot struct {
	files  []string // with data
	mounts []string // mount points
}

func leaveKubeletRoot(t *testing.T, root string) kubeletRoot {
	t.Helper()
	pod := filepath.Join(root, "pods", kubeletPod)
	disk := filepath.Join(t.TempDir(), "disk")
	k := kubeletRoot{
		files: []string{filepath.Join(pod, "volumes/kubernetes.io~empty-dir/cache/data"), filepath.Join(disk, "data")},
		mounts: []string{
			filepath.Join(pod, "volumes/kubernetes.io~projected/kube-api-access"),
			filepath.Join(root, "plugins/kubernetes.io/csi/disk.example.com/5f0c/globalmount"),
			filepath.Join(pod, "volumes/kubernetes.io~local-volume/pv-1"),
		},
	}
	for _, path := range k.files {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
	}
	mountTmpfs(t, k.mounts[0])
	mountTmpfs(t, k.mounts[1])
	mounter := mount.New(mount.Options{})
	require.NoError(t, mounter.Mount(t.Context(), mount.Request{Source: disk, Target: k.mounts[2], Options: []string{"bind"}}))
	t.Cleanup(func() { _ = mounter.Unmount(context.WithoutCancel(t.Context()), k.mounts[2], mount.UnmountOptions{}) })
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(k.mounts[1]), "vol_data.json"), []byte(`{"driverName":"disk.example.com"}`), 0o600))
	return k
}

func (k kubeletRoot) ids(t *testing.T) []mount.Identity {
	t.Helper()
	var ids []mount.Identity
	for _, path := range k.mounts {
		ids = append(ids, idAt(t, path))
	}
	return ids
}

// TestMovingANodeFromKubelet follows docs/operating.md, on a node that was not drained: a manager with a root of its own touches nothing
// that kubelet has left. One that is pointed to kubelet's root against the advice reports it, and takes off the bind of a local volume,
// which its plugin rebuilds; the data of the disk stays.
func TestMovingANodeFromKubelet(t *testing.T) {
	for name, c := range map[string]struct {
		lib      func(root, kubelet string) string
		orphans  []string // below kubelet's root
		takenOff int      // how many of the mounts, from the last on
	}{
		"a root of its own": {lib: func(root, _ string) string { return filepath.Join(root, "lib") }},
		"kubelet's root": {
			lib: func(_, kubelet string) string { return kubelet },
			orphans: []string{
				"pods/" + kubeletPod + "/volumes/kubernetes.io~empty-dir/cache",
				"pods/" + kubeletPod + "/volumes/kubernetes.io~projected/kube-api-access",
				"plugins/kubernetes.io/csi/disk.example.com/5f0c/globalmount",
			},
			takenOff: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			mounttest.RequireMounts(t)
			root, kubelet := t.TempDir(), t.TempDir()
			host, err := volume.NewHost(volume.HostOptions{RootDir: c.lib(root, kubelet), NodeName: testNode})
			require.NoError(t, err)
			n := realNode{root: root, plugins: volume.NewVolumePluginMgr(host), options: Options{
				RuntimeDir: filepath.Join(root, "run"), StateDir: filepath.Join(root, "state"), Resync: -1, WaitTimeout: time.Minute,
			}}
			require.NoError(t, n.plugins.InitPlugins(t.Context(),
				emptydir.New(emptydir.Options{}), files.NewProjected(files.Getters{}, files.Options{}), local.New(local.Options{})))
			left := leaveKubeletRoot(t, kubelet)
			before := left.ids(t)
			m, stop := n.start(t)
			pod := emptyDirPod("new")
			require.NoError(t, m.AddPod(t.Context(), pod))
			m.PodsComplete()
			require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
			looked(t, m)
			var orphans []string
			for _, o := range m.Status().Orphans {
				below, err := filepath.Rel(kubelet, o.Path)
				require.NoError(t, err)
				orphans = append(orphans, below)
			}
			assert.ElementsMatch(t, c.orphans, orphans)
			require.NoError(t, m.RemovePod(pod.UID))
			require.NoError(t, m.WaitForUnmount(t.Context(), pod))
			stay := len(before) - c.takenOff
			for _, path := range left.mounts[stay:] {
				eventually(t, m, func() bool { return idAt(t, path) == mount.Identity{} })
			}
			stop()
			assert.Equal(t, before[:stay], left.ids(t)[:stay])
			for _, path := range left.files {
				data, err := os.ReadFile(path)
				require.NoError(t, err)
				assert.Equal(t, "precious", string(data))
			}
		})
	}
}
