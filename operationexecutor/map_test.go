package operationexecutor_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// blockPlugin is the scripted plugin of block volumes, with all of the custom calls.
type blockPlugin struct{ *plugin }

func (p *blockPlugin) NewBlockVolumeMapper(*volume.Spec, *v1.Pod) (volume.BlockVolumeMapper, error) {
	if p.plain {
		return plainVolume{blockVolume{p.plugin}}, nil
	}
	return blockVolume{p.plugin}, nil
}

func (p *blockPlugin) NewBlockVolumeUnmapper(string, types.UID) (volume.BlockVolumeUnmapper, error) {
	if p.plain {
		return plainVolume{blockVolume{p.plugin}}, nil
	}
	return blockVolume{p.plugin}, nil
}

func (p *blockPlugin) ConstructBlockVolumeSpec(types.UID, string, string) (*volume.Spec, error) {
	return nil, errBroken
}

type blockVolume struct{ *plugin }

func (b blockVolume) GetGlobalMapPath(spec *volume.Spec) (string, error) {
	return b.host.GetVolumeDevicePluginDir(pluginName) + "/" + spec.Name(), nil
}
func (b blockVolume) GetPodDeviceMapPath() (dir, name string) { return "/pods/p", "data" }
func (b blockVolume) GetStagingPath() string                  { return "" }
func (b blockVolume) SetUpDevice(ctx context.Context, _ volume.SetUpDeviceArgs) (string, error) {
	return "", b.do(ctx, "SetUpDevice")
}
func (b blockVolume) MapPodDevice(ctx context.Context, a volume.MapPodDeviceArgs) (string, error) {
	path := ""
	if b.forPods != "" {
		path = b.forPods + "/" + string(a.PodUID)
	}
	return path, b.do(ctx, "MapPodDevice")
}
func (b blockVolume) UnmapPodDevice(ctx context.Context, _ volume.UnmapPodDeviceArgs) error {
	return b.do(ctx, "UnmapPodDevice")
}
func (b blockVolume) TearDownDevice(ctx context.Context, _ volume.TearDownDeviceArgs) error {
	return b.do(ctx, "TearDownDevice")
}

// blockMapper is scripted as the plugin is.
type blockMapper struct {
	*plugin
	pods []string
	last operationexecutor.DeviceMapping
}

func (b *blockMapper) MapDevice(ctx context.Context, m operationexecutor.DeviceMapping) error {
	b.last = m
	return b.do(ctx, "MapDevice")
}
func (b *blockMapper) UnmapDevice(ctx context.Context, m operationexecutor.DeviceMapping) error {
	b.last = m
	return b.do(ctx, "UnmapDevice")
}
func (b *blockMapper) ResolveDevice(ctx context.Context, path string) (string, error) {
	return path + ".real", b.do(ctx, "ResolveDevice")
}
func (b *blockMapper) MappedPods(ctx context.Context, _ string) ([]string, error) {
	return b.pods, b.do(ctx, "MappedPods")
}
func (b *blockMapper) RemoveMapPath(ctx context.Context, _ string) error {
	return b.do(ctx, "RemoveMapPath")
}

func blockSpec() *volume.Spec {
	s, mode := spec("data"), v1.PersistentVolumeBlock
	s.PersistentVolume.Spec.VolumeMode = &mode
	return s
}

// newBlockWorld has volume "data", a block volume, attached.
func newBlockWorld(t *testing.T) (*world, *blockMapper) {
	mapper := &blockMapper{}
	w := newWorld(t, setup{attachable: true, stageable: true, block: true, generator: func(o *operationexecutor.GeneratorOptions) {
		o.BlockMapper, o.NodeLabels = mapper, &nodeLabels{labels: map[string]string{"zone": "here"}}
	}})
	mapper.plugin = w.plugin
	require.NoError(t, w.actual.MarkVolumeAsAttached(volumeName("data"), blockSpec(), node, ""))
	return w, mapper
}

func (w *world) mapBlock() (*operationexecutor.Operation, error) {
	v := w.toMount("data", "p")
	v.VolumeSpec = blockSpec()
	return w.executor.MountVolume(w.t.Context(), v, operationexecutor.MountOptions{}, w.actual)
}

func (w *world) unmapBlock() (*operationexecutor.Operation, error) {
	v := w.mounted("data", "p")
	v.VolumeSpec = blockSpec()
	return w.executor.UnmountVolume(w.t.Context(), v, w.actual)
}

func TestABlockVolumeIsMappedAndUnmappedInOrder(t *testing.T) {
	w, mapper := newBlockWorld(t)
	w.succeeded(w.mapBlock())
	w.succeeded(w.unmapBlock())
	assert.Equal(t, operationexecutor.DeviceMapping{
		GlobalMapPath: "/var/lib/agent/plugins/" + pluginName + "/volumeDevices/data",
		PodMapDir:     "/pods/p", LinkName: "data", PodUID: "p",
	}, mapper.last)
	assert.Equal(t, "/dev/data.real", w.attachedVolume("data").DevicePath)
	w.succeeded(w.unmountDevice("data"))
	assert.Equal(t, []string{
		"intend staging", "WaitForAttach", "intend staging", "SetUpDevice", "conclude staging done",
		"intend set-up", "MapPodDevice", "ResolveDevice", "MapDevice", "conclude set-up done",
		"intend set-up", "UnmapDevice", "UnmapPodDevice", "conclude set-up forgotten",
		"MappedPods", "intend staging", "TearDownDevice", "RemoveMapPath", "conclude staging forgotten",
	}, w.all())
	assert.Equal(t, operationexecutor.DeviceNotMounted, w.device("data"))
	assert.Equal(t, operationexecutor.VolumeNotMounted, w.pod("data", "p"))
	assert.Equal(t, []string{
		"Normal SuccessfulMountVolume p", "Normal SuccessfulUnmountVolume p", "Normal SuccessfulUnmountDevice data",
	}, w.recorder.all())
	assert.Empty(t, w.journal.records)
}

// A CSI driver publishes a device for each pod. The next pod, and the next attempt, wait for the device of the attachment.
func TestTheDeviceOfAPodIsNotThatOfTheVolume(t *testing.T) {
	w, mapper := newBlockWorld(t)
	w.plugin.forPods = "/published"
	w.plugin.fail("MapDevice", errBroken)
	require.ErrorIs(t, w.failed(w.mapBlock()), errBroken)
	w.plugin.fail("MapDevice", nil)
	w.succeeded(w.mapBlock())
	assert.Equal(t, "/published/p.real", mapper.last.DevicePath)

	next := w.toMount("data", "q")
	next.VolumeSpec = blockSpec()
	w.succeeded(w.executor.MountVolume(t.Context(), next, operationexecutor.MountOptions{}, w.actual))
	assert.Equal(t, "/published/q.real", mapper.last.DevicePath)
	assert.Equal(t, []string{"", "/dev/data", "/dev/data"}, w.plugin.waited)
	assert.Equal(t, "/dev/data", w.attachedVolume("data").DevicePath)
}

func TestWhatAFailureToMapMeans(t *testing.T) {
	for _, test := range []struct {
		call   string
		device operationexecutor.DeviceMountState
		pod    operationexecutor.VolumeMountState
	}{
		{"WaitForAttach", operationexecutor.DeviceNotMounted, operationexecutor.VolumeNotMounted},
		{"SetUpDevice", operationexecutor.DeviceNotMounted, operationexecutor.VolumeNotMounted},
		{"MapPodDevice", operationexecutor.DeviceGloballyMounted, operationexecutor.VolumeNotMounted},
		{"ResolveDevice", operationexecutor.DeviceGloballyMounted, operationexecutor.VolumeMountUncertain},
		{"MapDevice", operationexecutor.DeviceGloballyMounted, operationexecutor.VolumeMountUncertain},
	} {
		t.Run(test.call, func(t *testing.T) {
			w, _ := newBlockWorld(t)
			w.plugin.fail(test.call, errBroken)
			require.ErrorIs(t, w.failed(w.mapBlock()), errBroken)
			assert.Equal(t, test.device, w.device("data"))
			assert.Equal(t, test.pod, w.pod("data", "p"))
			assert.Equal(t, []string{"Warning FailedMapVolume p"}, w.recorder.all())
			w.plugin.fail(test.call, nil)
			w.succeeded(w.mapBlock())
			assert.Equal(t, operationexecutor.VolumeMounted, w.pod("data", "p"))
			if test.call == "SetUpDevice" {
				return // What is prepared is not prepared again.
			}
			w.plugin.fail(test.call, errBroken)
			_ = w.failed(w.mapBlock())
			assert.Equal(t, operationexecutor.VolumeMounted, w.pod("data", "p"), "what is live stays")
		})
	}
}

// Found by the simulation: the plugin fails for good, and the bind of the attempt before was forgotten with its record.
func TestWhatMayBeBoundStaysUncertainWhenThePluginFailsForGood(t *testing.T) {
	w, _ := newBlockWorld(t)
	w.plugin.fail("MapDevice", errBroken)
	_ = w.failed(w.mapBlock())
	require.Equal(t, operationexecutor.VolumeMountUncertain, w.pod("data", "p"))
	w.plugin.fail("MapPodDevice", errBroken)
	require.ErrorIs(t, w.failed(w.mapBlock()), volume.ErrUncertain)
	assert.Equal(t, operationexecutor.VolumeMountUncertain, w.pod("data", "p"))
}

func TestAFailureToUnmapLeavesItUncertain(t *testing.T) {
	for _, call := range []string{"UnmapDevice", "UnmapPodDevice"} {
		w, _ := newBlockWorld(t)
		w.succeeded(w.mapBlock())
		w.plugin.fail(call, errBroken)
		require.ErrorIs(t, w.failed(w.unmapBlock()), volume.ErrUncertain)
		assert.Equal(t, operationexecutor.VolumeMountUncertain, w.pod("data", "p"))
		w.plugin.fail(call, nil)
		w.succeeded(w.unmapBlock())
	}
	for _, spoil := range []func(w *world){
		func(w *world) { w.plugin.fail("TearDownDevice", errBroken) },
		func(w *world) { w.plugin.fail("RemoveMapPath", errBroken) },
		func(w *world) { w.devices.opened = true },
		func(w *world) { w.devices.err = errBroken },
	} {
		w, _ := newBlockWorld(t)
		w.succeeded(w.mapBlock())
		w.succeeded(w.unmapBlock())
		spoil(w)
		require.ErrorIs(t, w.failed(w.unmountDevice("data")), volume.ErrUncertain)
		assert.Equal(t, operationexecutor.DeviceMountUncertain, w.device("data"))
		assert.True(t, slices.Contains(w.recorder.all(), "Warning FailedUnmapDevice data"))
	}
}

func TestADeviceThatIsBoundForAPodIsNotTornDown(t *testing.T) {
	w, mapper := newBlockWorld(t)
	w.succeeded(w.mapBlock())
	require.ErrorIs(t, w.failed(w.unmountDevice("data")), volume.ErrInUse, "the actual state knows the pod")
	w.succeeded(w.unmapBlock())
	mapper.pods = []string{"other"}
	require.ErrorIs(t, w.failed(w.unmountDevice("data")), volume.ErrInUse)
	assert.Zero(t, w.count("TearDownDevice"))
	assert.Equal(t, operationexecutor.DeviceGloballyMounted, w.device("data"))
}

func TestNothingIsMappedWithoutAMapper(t *testing.T) {
	w := newWorld(t, setup{attachable: true, stageable: true, block: true})
	require.NoError(t, w.actual.MarkVolumeAsAttached(volumeName("data"), blockSpec(), node, ""))
	require.ErrorIs(t, w.failed(w.mapBlock()), volume.ErrUnsupported)
	assert.Empty(t, w.all())
}
