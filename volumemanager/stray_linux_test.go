package volumemanager

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
)

// TestAStrayFileBelowAVolumeIsKeptAndHoldsNothingUp: a file lies in the directory on which the volume is staged, and another in
// that on which it is set up for the pod. They are told of, the device is detached, and the files stay.
func TestAStrayFileBelowAVolumeIsKeptAndHoldsNothingUp(t *testing.T) {
	mounttest.RequireRoot(t)
	n := newPluginsNode(t)
	loops := loop.New(loop.Options{})
	plugin := loopblock.New(loopblock.Options{Loops: loops})
	require.NoError(t, n.plugins.InitPlugins(t.Context(), plugin))
	recorder := &eventLog{}
	n.options.Mounter, n.options.Loops, n.options.Recorder = mount.New(mount.Options{}), loops, recorder
	claim := claimOfName("disk")
	claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse("4Mi")}
	provisioner, err := plugin.NewProvisioner(volume.VolumeOptions{PVName: "pv-disk", PVC: claim})
	require.NoError(t, err)
	pv, err := provisioner.Provision(t.Context(), nil, nil)
	require.NoError(t, err)
	n.bind("disk", pv)
	pod := podOf("web", "disk")

	host := n.plugins.Host()
	staging := filepath.Join(host.GetPluginDir(loopblock.Name), "mounts", "pv-disk")
	setUp := host.GetPodVolumeDir(pod.UID, loopblock.Name, "pv-disk")
	strays := []string{filepath.Join(staging, "stray"), filepath.Join(setUp, "stray")}
	for _, stray := range strays {
		require.NoError(t, os.MkdirAll(filepath.Dir(stray), 0o750))
		require.NoError(t, os.WriteFile(stray, []byte("precious"), 0o600))
	}
	m, stop := n.start(t)
	defer stop()
	require.NoError(t, m.AddPod(t.Context(), pod))
	require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
	conditions := m.PodStatus(pod.UID)[0].Conditions
	at := slices.IndexFunc(conditions, func(c Condition) bool { return c.Reason == ReasonStrayFiles })
	require.GreaterOrEqual(t, at, 0, "it is told while the volume is wanted: %v", conditions)
	assert.Equal(t, volume.HealthDegraded, conditions[at].Status)
	assert.ErrorContains(t, conditions[at].Err, staging)
	device := m.PodStatus(pod.UID)[0].DevicePath

	m.PodsComplete()
	require.NoError(t, m.RemovePod(pod.UID))
	require.NoError(t, m.WaitForNodeEmpty(t.Context()))
	_, err = loops.Inspect(t.Context(), device)
	require.ErrorIs(t, err, loop.ErrNotAttached)
	for _, stray := range strays {
		assert.FileExists(t, stray)
		assert.Zero(t, idAt(t, filepath.Dir(stray)))
	}
	var told []string
	for _, o := range m.Status().Orphans {
		require.ErrorIs(t, o.Err, volume.ErrDirectoryKept)
		told = append(told, o.Path)
	}
	assert.ElementsMatch(t, []string{staging, setUp}, told)
	assert.Equal(t, 2, recorder.count(operationexecutor.ReasonDirectoryKept))

	// It can be used again, and the files are still there.
	require.NoError(t, m.AddPod(t.Context(), pod))
	require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
	require.NoError(t, m.RemovePod(pod.UID))
	require.NoError(t, m.WaitForNodeEmpty(t.Context()))
	assert.Len(t, m.Status().Orphans, 2)
	for _, stray := range strays {
		require.NoError(t, os.RemoveAll(filepath.Dir(stray)))
	}
}
