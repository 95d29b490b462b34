package operationexecutor_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// BenchmarkMountAndUnmount is what an operation costs beside the plugin: two operations, with every call isolated.
func BenchmarkMountAndUnmount(b *testing.B) {
	p := &plugin{history: &history{}}
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/var/lib/agent", NodeName: node})
	require.NoError(b, err)
	plugins := volume.NewVolumePluginMgr(host)
	require.NoError(b, plugins.InitPlugins(b.Context(), p))
	generator := operationexecutor.NewOperationGenerator(operationexecutor.GeneratorOptions{Plugins: plugins})
	executor := operationexecutor.NewOperationExecutor(generator, operationexecutor.ExecutorOptions{})
	w := &world{plugin: p}
	mount, unmount, state := w.toMount("data", "p"), w.mounted("data", "p"), anyState{}
	b.ReportAllocs()
	for b.Loop() {
		op, err := executor.MountVolume(b.Context(), mount, operationexecutor.MountOptions{}, state)
		require.NoError(b, err)
		<-op.Done()
		op, err = executor.UnmountVolume(b.Context(), unmount, state)
		require.NoError(b, err)
		<-op.Done()
		p.clear()
	}
}

// anyState takes everything and knows nothing.
type anyState struct {
	operationexecutor.ActualStateOfWorldMounterUpdater
}

func (anyState) MarkVolumeAsMounted(operationexecutor.MountedVolume) error { return nil }

func (anyState) MarkVolumeAsUnmounted(volume.UniquePodName, v1.UniqueVolumeName) error { return nil }

func (anyState) IsVolumeReconstructed(v1.UniqueVolumeName, volume.UniquePodName) bool { return false }

func (anyState) GetVolumeMountState(v1.UniqueVolumeName, volume.UniquePodName) operationexecutor.VolumeMountState {
	return operationexecutor.VolumeNotMounted
}
