package volumemanager

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins/emptydir"
	"github.com/volumekit/volumekit/volume"
)

// boot removes all that a reboot removes: the mounts, the loop devices and the records of mounts.
func (n *blockNode) boot(node realNode, pods ...*v1.Pod) {
	n.t.Helper()
	ctx := n.t.Context()
	for _, pod := range pods {
		require.NoError(n.t, n.mounter.Unmount(ctx, n.bind(pod), mount.UnmountOptions{}))
	}
	for _, d := range append(n.locks(ctx), n.devices(ctx)...) {
		require.NoError(n.t, n.loops.Detach(ctx, d))
	}
	require.NoError(n.t, os.Rename(node.options.RuntimeDir, node.options.RuntimeDir+"-of-earlier-boot"))
	rewriteRecord(n.t, node.options.StateDir, func(r map[string]any) { r["bootID"] = "earlier" })
}

// The records of mounts go with a reboot; the directories stay. The records of attachments tell which volumes the
// directories belong to, also when some directories are missing.
func TestAfterABootTheDirectoriesAreKnownFromWhatWasAttached(t *testing.T) {
	for name, lose := range map[string]func(n *blockNode, pod *v1.Pod) error{
		"nothing": func(*blockNode, *v1.Pod) error { return nil },
		"the link of the pod": func(n *blockNode, pod *v1.Pod) error {
			for dir := n.link(pod); dir != n.root; dir = filepath.Dir(dir) {
				if err := os.Remove(dir); err != nil {
					return err
				}
				if filepath.Base(dir) == "pods" {
					break
				}
			}
			return nil
		},
		"what was bound": func(n *blockNode, pod *v1.Pod) error { return os.Remove(n.bind(pod)) },
	} {
		t.Run(name, func(t *testing.T) {
			n, node := newManagedBlockNode(t)
			node.options.Loops = n.loops
			pod := blockPodOf("first", "disk")
			pod.UID = "first"
			m, stop := node.start(t)
			require.NoError(t, m.AddPod(t.Context(), pod))
			require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
			looked(t, m)
			stop()
			m, stop = node.start(t)
			looked(t, m)
			assert.Empty(t, m.Status().Orphans, "the device is on record")
			stop()
			n.boot(node, pod)
			require.NoError(t, lose(n, pod))

			m, stop = node.start(t)
			defer stop()
			require.NoError(t, m.RemovePod(pod.UID))
			m.PodsComplete()
			require.NoError(t, m.WaitForUnmount(t.Context(), pod))
			require.NoError(t, m.WaitForNodeEmpty(t.Context()))
			assert.Positive(t, m.Status().Rebuilt)
			assert.Empty(t, m.Status().Orphans)
			assert.NoDirExists(t, n.mapDir())
			assert.NoDirExists(t, filepath.Join(n.root, "pods/first"))
			assert.FileExists(t, n.image())
			assert.Empty(t, n.devices(t.Context()))
		})
	}
}

// slowPlugin is a knowingPlugin that answers ConstructVolumeSpec only when the test lets it.
type slowPlugin struct {
	knowingPlugin
	asked, answer chan struct{}
}

func (p *slowPlugin) ConstructVolumeSpec(name, path string) (volume.ReconstructedVolume, error) {
	close(p.asked)
	<-p.answer
	return p.knowingPlugin.ConstructVolumeSpec(name, path)
}

// WaitForUnmount and WaitForNodeEmpty do not return while a plugin is still asked which volume it finds at a path.
func TestNothingIsGoneBeforeWhatIsOnNoRecordIsKnown(t *testing.T) {
	n := knownNode(t, true)
	pod := emptyDirPod("web")
	n.leave(t, pod)
	require.NoError(t, os.Rename(n.options.RuntimeDir, n.options.RuntimeDir+"-lost"))
	plugin := &slowPlugin{knowingPlugin{tmpfsPlugin{mounter: mount.New(mount.Options{})}}, make(chan struct{}), make(chan struct{})}
	n.plugins = volume.NewVolumePluginMgr(n.plugins.Host())
	require.NoError(t, n.plugins.InitPlugins(t.Context(), plugin))
	m, stop := n.start(t)
	defer stop()
	<-plugin.asked
	require.NoError(t, m.RemovePod(pod.UID))
	m.PodsComplete()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, m.WaitForUnmount(ended, pod), context.Canceled)
	require.ErrorIs(t, m.WaitForNodeEmpty(ended), context.Canceled)
	close(plugin.answer)
	require.NoError(t, m.WaitForUnmount(t.Context(), pod))
	require.NoError(t, m.WaitForNodeEmpty(t.Context()))
	assert.NoDirExists(t, n.pathOf(pod))
	assert.NoDirExists(t, filepath.Dir(filepath.Dir(filepath.Dir(n.pathOf(pod)))))
}

// After a reboot, the content of a pod's emptyDir on the node's disk is still there. It stays as long as the pod may return.
func TestAfterABootTheContentOfAnEmptyDirGoesOnlyWhenItsPodDoesNotReturn(t *testing.T) {
	n := knownNode(t, false)
	n.plugins = volume.NewVolumePluginMgr(n.plugins.Host())
	require.NoError(t, n.plugins.InitPlugins(t.Context(), emptydir.New(emptydir.Options{})))
	back, gone := podOf("back", "-cache"), podOf("gone", "-cache")
	content := func(pod *v1.Pod) string {
		return filepath.Join(n.plugins.Host().GetPodVolumeDir(pod.UID, emptydir.Name, "cache"), "content")
	}
	for _, pod := range []*v1.Pod{back, gone} {
		pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}
	}
	n.leave(t, back, gone)
	for _, pod := range []*v1.Pod{back, gone} {
		require.NoError(t, os.WriteFile(content(pod), []byte("precious"), 0o600))
	}
	require.NoError(t, os.Rename(n.options.RuntimeDir, n.options.RuntimeDir+"-of-earlier-boot"))

	m, stop := n.start(t)
	defer stop()
	looked(t, m)
	require.NoError(t, m.AddPod(t.Context(), back))
	require.NoError(t, m.WaitForAttachAndMount(t.Context(), back))
	assert.FileExists(t, content(gone), "it is not known yet whether its pod returns")
	m.PodsComplete()
	require.NoError(t, m.WaitForUnmount(t.Context(), gone))
	assert.NoDirExists(t, filepath.Join(n.plugins.Host().GetPodsDir(), string(gone.UID)))
	kept, err := os.ReadFile(content(back))
	require.NoError(t, err)
	assert.Equal(t, "precious", string(kept))
	require.NoError(t, m.RemovePod(back.UID))
	require.NoError(t, m.WaitForNodeEmpty(t.Context()))
}
