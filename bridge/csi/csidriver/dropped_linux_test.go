package csidriver

import (
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/bridge/csi/internal/fakedriver"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// withoutAttach is a driver that stages volumes and does not attach them.
func withoutAttach() fakedriver.Options {
	return fakedriver.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}}
}

// dropStaging updates the driver to a version that does not stage volumes, and restarts the agent.
func (n *node) dropStaging() {
	n.t.Helper()
	n.Update(func(o *fakedriver.Options) { o.Node = withoutStaging().Node })
	n.restart()
	require.Eventually(n.t, func() bool { return n.driver.Connect(n.t.Context()) == nil && !n.plugin.client.stages() }, time.Minute, time.Millisecond)
	n.restartAgent()
}

// registered returns the registry with the plugin, as a manager has it.
func (n *node) registered() *volume.VolumePluginMgr {
	n.t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: n.root, NodeName: "node-1"})
	require.NoError(n.t, err)
	plugins := volume.NewVolumePluginMgr(host)
	require.NoError(n.t, plugins.InitPlugins(n.t.Context(), n.plugin))
	return plugins
}

// A driver may drop STAGE_UNSTAGE_VOLUME in an update. Volumes that it has staged stay so for their pods, and are unstaged after them.
func TestAVolumeIsUnstagedByADriverThatStagesNoMore(t *testing.T) {
	n := newNode(t, withoutAttach(), nil)
	require.NoError(t, n.stageAlone())
	require.NoError(t, n.setUp(t.Context()))
	name, err := n.registered().UniqueVolumeName("pod", n.spec)
	require.NoError(t, err)
	n.dropStaging()

	plugins := n.registered()
	_, err = plugins.FindDeviceMountablePluginByName(n.plugin.GetPluginName())
	require.NoError(t, err, "the volume could not be unstaged")
	again, err := plugins.UniqueVolumeName("pod", n.spec)
	require.NoError(t, err)
	assert.Equal(t, name, again, "a volume in use keeps its name")
	require.NoError(t, n.stageAlone(), "it is staged")
	require.NoError(t, n.setUp(t.Context()))
	assert.Equal(t, 1, n.Count("NodeStageVolume"))
	n.expectGone()
	assert.Equal(t, 1, n.Count("NodeUnstageVolume"))

	stages, err := n.plugin.CanDeviceMount(n.spec)
	require.NoError(t, err)
	assert.False(t, stages, "nothing of it is staged any more")
	require.ErrorIs(t, n.stageAlone(), volume.ErrUnsupported)
	require.NoError(t, n.setUp(t.Context()))
	require.NoError(t, n.tearDown())
}

// The same holds for a device.
func TestADeviceIsUnstagedByADriverThatStagesNoMore(t *testing.T) {
	n := newNode(t, withoutAttach(), nil)
	n.spec.PersistentVolume.Spec.VolumeMode = new(v1.PersistentVolumeBlock)
	mapper := func() volume.CustomBlockVolumeMapper {
		m, err := n.plugin.NewBlockVolumeMapper(n.spec, &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod-1"}})
		require.NoError(t, err)
		return m.(volume.CustomBlockVolumeMapper)
	}
	staged, err := mapper().SetUpDevice(t.Context(), volume.SetUpDeviceArgs{})
	require.NoError(t, err)
	n.dropStaging()
	assert.Equal(t, staged, mapper().GetStagingPath())
	again, err := mapper().SetUpDevice(t.Context(), volume.SetUpDeviceArgs{})
	require.NoError(t, err)
	assert.Equal(t, staged, again)
	assert.Equal(t, 1, n.Count("NodeStageVolume"))
	unmapper, err := n.plugin.NewBlockVolumeUnmapper(n.spec.Name(), "")
	require.NoError(t, err)
	mapPath, err := unmapper.GetGlobalMapPath(n.spec)
	require.NoError(t, err)
	require.NoError(t, unmapper.(volume.CustomBlockVolumeUnmapper).TearDownDevice(t.Context(), volume.TearDownDeviceArgs{MapPath: mapPath}))
	assert.Equal(t, 1, n.Count("NodeUnstageVolume"))
	assert.Empty(t, mapper().GetStagingPath())
}

// A driver that does not implement NodeUnstageVolume any more proves nothing. The volume stays on record, is not deleted, and the error
// says what remains. A reboot is the proof.
func TestAVolumeThatNoCallUnstagesStaysOnRecord(t *testing.T) {
	n := newNode(t, withoutAttach(), nil)
	require.NoError(t, n.stageAlone())
	staging := n.plugin.node.stagingPath(source{csi: n.spec.PersistentVolume.Spec.CSI})
	n.dropStaging()
	n.Plan("NodeUnstageVolume", fakedriver.Fault{Code: codes.Unimplemented, Always: true})
	for range 2 {
		err := n.unstage()
		require.ErrorIs(t, err, volume.ErrUnsupported)
		require.ErrorContains(t, err, staging)
		require.ErrorContains(t, err, "vol-pv-1")
		require.ErrorIs(t, n.tryDelete(n.spec), volume.ErrInUse)
	}
	require.NoError(t, mount.UnmountPath(t.Context(), n.plugin.options.Mounter, staging, mount.UnmountOptions{}))
	require.ErrorIs(t, n.unstage(), volume.ErrUnsupported, "the driver may have more of it than the mount")

	rec, known, err := n.plugin.node.mountPoints.records.read(staging)
	require.NoError(t, err)
	require.True(t, known)
	n.writeRecord("earlier", rec)
	require.NoError(t, n.unstage(), "what was staged has ended with its boot")
	_, known, err = n.plugin.node.mountPoints.records.read(staging)
	require.NoError(t, err)
	assert.False(t, known)

	n.RemoveFaults()
	n.writeRecord(n.plugin.node.mountPoints.records.boot, rec)
	require.NoError(t, n.unstage(), "an earlier version of the driver unstages it")
}
