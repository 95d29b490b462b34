package operationexecutor_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

func (w *world) toMap(podName string) operationexecutor.VolumeToMount {
	v := w.toMount("data", podName)
	v.VolumeSpec = blockSpec()
	return v
}

func (w *world) mapIt(v operationexecutor.VolumeToMount) (*operationexecutor.Operation, error) {
	return w.executor.MountVolume(w.t.Context(), v, operationexecutor.MountOptions{}, w.actual)
}

// TestWhatCannotBeMappedIsRefused before anything is recorded or called, and it is certain that nothing was.
func TestWhatCannotBeMappedIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		change func(w *world, v *operationexecutor.VolumeToMount)
		want   error
	}{
		"a second pod of a volume for one pod": {func(w *world, v *operationexecutor.VolumeToMount) {
			v.VolumeSpec.PersistentVolume.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
			w.succeeded(w.mapBlock())
			v.PodName, v.Pod = "q", pod("q")
			w.clear()
		}, volume.ErrInUse},
		"a volume of other nodes": {func(_ *world, v *operationexecutor.VolumeToMount) {
			v.VolumeSpec.PersistentVolume.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{
				NodeSelectorTerms: []v1.NodeSelectorTerm{exprs(need("zone", v1.NodeSelectorOpIn, "other"))},
			}}
		}, volume.ErrNodeAffinity},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := newBlockWorld(t)
			v := w.toMap("p")
			test.change(w, &v)
			err := w.failed(w.mapIt(v))
			require.ErrorIs(t, err, test.want)
			require.NotErrorIs(t, err, volume.ErrUncertain)
			assert.Empty(t, w.all())
			assert.Equal(t, operationexecutor.VolumeNotMounted, w.pod("data", string(v.PodName)))
		})
	}
}

// TestOnlyBlockVolumesAreMapped also when the generator is asked by itself, and they are not mounted.
func TestOnlyBlockVolumesAreMapped(t *testing.T) {
	w, _ := newBlockWorld(t)
	for _, s := range []*volume.Spec{spec("data"), strangeMode(spec("data"))} {
		e := operationexecutor.NewOperationExecutor(swapped{w.generator}, operationexecutor.ExecutorOptions{})
		v := w.toMount("data", "p")
		v.VolumeSpec = s
		op, err := e.MountVolume(t.Context(), v, operationexecutor.MountOptions{}, w.actual)
		require.NoError(t, err)
		awaitDone(t, op)
		require.ErrorIs(t, op.Err(), volume.ErrUnsupported)
	}
	e := operationexecutor.NewOperationExecutor(swapped{w.generator}, operationexecutor.ExecutorOptions{})
	op, err := e.MountVolume(t.Context(), w.toMap("p"), operationexecutor.MountOptions{}, w.actual)
	require.NoError(t, err)
	awaitDone(t, op)
	require.ErrorIs(t, op.Err(), volume.ErrUnsupported)
	assert.Empty(t, w.journal.records)
}

// swapped makes a map operation where a mount is asked for, and the other way round.
type swapped struct {
	operationexecutor.OperationGenerator
}

func (s swapped) GenerateMountVolumeFunc(v operationexecutor.VolumeToMount, o operationexecutor.MountOptions, a operationexecutor.ActualStateOfWorldMounterUpdater) *operationexecutor.Operation {
	return s.OperationGenerator.GenerateMapVolumeFunc(v, o, a)
}

func (s swapped) GenerateMapVolumeFunc(v operationexecutor.VolumeToMount, o operationexecutor.MountOptions, a operationexecutor.ActualStateOfWorldMounterUpdater) *operationexecutor.Operation {
	return s.OperationGenerator.GenerateMountVolumeFunc(v, o, a)
}

func TestADeviceWithoutAPathIsNotMapped(t *testing.T) {
	mapper := &blockMapper{}
	w := newWorld(t, setup{block: true, generator: func(o *operationexecutor.GeneratorOptions) { o.BlockMapper = mapper }})
	mapper.plugin = w.plugin
	require.NoError(t, w.actual.MarkVolumeAsAttached(volumeName("data"), blockSpec(), node, ""))
	require.ErrorContains(t, w.failed(w.mapBlock()), "path of the volume's device is empty")
	assert.Zero(t, w.count("ResolveDevice"))
	assert.Zero(t, w.count("MapDevice"))
	assert.Equal(t, operationexecutor.VolumeMountUncertain, w.pod("data", "p"), "the plugin may have made it ready")
	w.succeeded(w.unmapBlock())
	w.succeeded(w.unmountDevice("data"))
	assert.Empty(t, w.journal.records)
}

// TestPodsOfADeviceThatIsNotAttachedTakeTurns: what SetUpDevice prepares is the volume's.
func TestPodsOfADeviceThatIsNotAttachedTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{block: true, generator: func(o *operationexecutor.GeneratorOptions) { o.BlockMapper = &blockMapper{} }})
		require.NoError(t, w.actual.MarkVolumeAsAttached(volumeName("data"), blockSpec(), node, ""))
		release := w.hang("SetUpDevice")
		op, err := w.mapIt(w.toMap("p"))
		require.NoError(t, err)
		synctest.Wait()
		_, err = w.mapIt(w.toMap("q"))
		var pending *volume.PendingError
		require.ErrorAs(t, err, &pending)
		release()
		awaitDone(t, op)
	})
}

// TestABindThatHangsIsLeftBehind: the key stays busy until it returns, and the mapping is uncertain.
func TestABindThatHangsIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := newBlockWorld(t)
		release := w.hang("MapDevice")
		op, err := w.mapBlock()
		require.NoError(t, err)
		awaitDone(t, op)
		require.ErrorIs(t, op.Err(), context.DeadlineExceeded)
		require.ErrorIs(t, op.Err(), volume.ErrUncertain)
		assert.Equal(t, operationexecutor.VolumeMountUncertain, w.pod("data", "p"))
		assert.Equal(t, operationexecutor.IntentUncertain, w.journal.record("data", "p"))
		require.Len(t, w.executor.Hung(), 1)
		assert.Equal(t, "MapDevice", w.executor.Hung()[0].Call)
		_, err = w.unmapBlock()
		var pending *volume.PendingError
		require.ErrorAs(t, err, &pending, "the call still runs")
		release()
		synctest.Wait()
		time.Sleep(time.Hour) // of the bubble: until no back-off is left
		w.succeeded(w.unmapBlock())
		w.succeeded(w.unmountDevice("data"))
		assert.Empty(t, w.journal.records)
	})
}

// plainVolume hides the custom calls.
type plainVolume struct{ volume.BlockVolume }

func TestAMapperThatIsNotCustomIsCalledForPathsAlone(t *testing.T) {
	w, mapper := newBlockWorld(t)
	w.plugin.plain = true
	w.succeeded(w.mapBlock())
	assert.Equal(t, "/dev/data.real", mapper.last.DevicePath)
	w.succeeded(w.unmapBlock())
	w.succeeded(w.unmountDevice("data"))
	assert.Equal(t, []string{
		"intend staging", "WaitForAttach", "intend staging", "conclude staging done",
		"intend set-up", "ResolveDevice", "MapDevice", "conclude set-up done",
		"intend set-up", "UnmapDevice", "conclude set-up forgotten",
		"MappedPods", "intend staging", "RemoveMapPath", "conclude staging forgotten",
	}, w.all())
}

// TestADeviceIsGrownBeforeThePodGetsIt: the plugin is told of the device and of the link, and its failure leaves the mapping
// uncertain.
func TestADeviceIsGrownBeforeThePodGetsIt(t *testing.T) {
	mapper, claims := &blockMapper{}, newClaimStatus(claimOf("data", "20Gi", "10Gi"))
	claims.at(nodePending, "20Gi")
	w := newWorld(t, setup{
		attachable: true, stageable: true, abilities: volume.CapExpand | volume.CapNodeExpand | volume.CapBlock,
		generator: func(o *operationexecutor.GeneratorOptions) {
			o.Claims, o.Capacity, o.BlockMapper = claims, claims, mapper
		},
	})
	mapper.plugin = w.plugin
	v := w.toMap("p")
	v.VolumeSpec = block(claimedSpec("data", "20Gi"))
	require.NoError(t, w.actual.MarkVolumeAsAttached(volumeName("data"), v.VolumeSpec, node, ""))
	w.plugin.fail("NodeExpand", errBroken)
	require.ErrorIs(t, w.failed(w.mapIt(v)), errBroken)
	assert.Equal(t, operationexecutor.VolumeMountUncertain, w.pod("data", "p"))
	w.plugin.fail("NodeExpand", nil)
	w.succeeded(w.mapIt(v))
	assert.Equal(t, "/dev/data.real", w.able.nodeGrown.DevicePath)
	assert.Equal(t, "/pod/link", w.able.nodeGrown.DeviceMountPath)
	assert.Equal(t, "/staged", w.able.nodeGrown.DeviceStagePath)
	size := w.actual.GetClaimSize(volumeName("data"))
	assert.Equal(t, "20Gi", size.String())
	assert.Equal(t, operationexecutor.VolumeMounted, w.pod("data", "p"))
}

// TestADeviceThatWasFoundStaysUncertainUntilItIsMapped: that it cannot be mapped again does not prove that it is not there.
func TestADeviceThatWasFoundStaysUncertainUntilItIsMapped(t *testing.T) {
	w, mapper := newBlockWorld(t)
	require.NoError(t, w.actual.DeleteVolume(volumeName("data")))
	w.foundBlock(blockSpec())
	w.plugin.fail("MapPodDevice", errBroken)
	require.ErrorIs(t, w.failed(w.mapBlock()), volume.ErrUncertain)
	assert.Equal(t, operationexecutor.VolumeMountUncertain, w.pod("data", "p"))
	w.succeeded(w.unmapBlock())
	assert.Equal(t, "/var/lib/agent/plugins/"+pluginName+"/volumeDevices/data", mapper.last.GlobalMapPath)
	w.succeeded(w.unmountDevice("data"))
	assert.Equal(t, operationexecutor.DeviceNotMounted, w.device("data"))
}

// foundBlock makes the actual state know a device that was mapped for pod p before a restart.
func (w *world) foundBlock(s *volume.Spec) {
	require.NoError(w.t, w.actual.AddReconstructedVolume(operationexecutor.AttachedVolume{
		VolumeName: volumeName("data"), VolumeSpec: s, PluginIsAttachable: true,
		DeviceMountPath: "/var/lib/agent/plugins/" + pluginName + "/volumeDevices/data",
	}))
	_, err := w.actual.AddReconstructedPod(operationexecutor.MountedVolume{
		VolumeName: volumeName("data"), PodName: "p", PodUID: "p", VolumeSpec: s, MountPath: "/pods/p/data",
	})
	require.NoError(w.t, err)
}

// TestABlockVolumeWithoutASpecIsNeverTornDownAsAFilesystem: what else is known of it tells what it is.
func TestABlockVolumeWithoutASpecIsNeverTornDownAsAFilesystem(t *testing.T) {
	maps := "/var/lib/agent/plugins/" + pluginName + "/volumeDevices/data"
	for name, know := range map[string]func(v *operationexecutor.MountedVolume){
		"its mapper": func(v *operationexecutor.MountedVolume) {
			v.BlockVolumeMapper, v.DeviceMountPath = plainVolume{}, "/elsewhere"
		},
		"its global map path": func(v *operationexecutor.MountedVolume) { v.DeviceMountPath = maps },
		"its link": func(v *operationexecutor.MountedVolume) {
			v.MountPath = "/var/lib/agent/pods/p/volumeDevices/example.com~scripted/data"
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := newBlockWorld(t)
			w.succeeded(w.mapBlock())
			v := w.mounted("data", "p")
			v.VolumeSpec = nil
			know(&v)
			op := w.ended(w.executor.UnmountVolume(t.Context(), v, w.actual))
			assert.Equal(t, operationexecutor.OpUnmap, op.Info().Kind)
			assert.Zero(t, w.count("TearDown"))
		})
	}
	w, _ := newBlockWorld(t)
	w.succeeded(w.mapBlock())
	w.succeeded(w.unmapBlock())
	v := w.attachedVolume("data")
	v.VolumeSpec = nil
	require.ErrorContains(t, w.failed(w.executor.UnmountDevice(t.Context(), v, w.actual)), "reconstruct")
	assert.Zero(t, w.count("UnmountDevice"))
	assert.Equal(t, operationexecutor.DeviceGloballyMounted, w.device("data"))

	w = stagedWorld(t)
	w.succeeded(w.mount("data", "p"))
	m := w.mounted("data", "p")
	m.VolumeSpec, m.MountPath, m.DeviceMountPath = nil, "/var/lib/agent/pods/p/volumes/x/data", "/var/lib/agent/plugins/"+pluginName+"/mounts/data"
	w.succeeded(w.executor.UnmountVolume(t.Context(), m, w.actual))
	assert.Equal(t, 1, w.count("TearDown"), "a filesystem")
	v = w.attachedVolume("data")
	v.VolumeSpec = nil
	w.succeeded(w.executor.UnmountDevice(t.Context(), v, w.actual))
	assert.Equal(t, 1, w.count("UnmountDevice"))
}
