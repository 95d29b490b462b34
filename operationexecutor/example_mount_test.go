package operationexecutor_test

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// An operation is started, its end awaited, and its effect is in the actual state.
func ExampleExecutor_MountVolume() {
	ctx := context.Background()
	host := fake.NewHost("")
	plugins := volume.NewVolumePluginMgr(host)
	plugin := fake.NewPlugin(fake.PluginOptions{Mounter: fake.NewMounter(fake.MounterOptions{})})
	if err := plugins.InitPlugins(ctx, plugin); err != nil {
		fmt.Println(err)
		return
	}
	desired := cache.NewDesiredStateOfWorld(plugins, cache.Options{})
	actual := cache.NewActualStateOfWorld(host.GetNodeName(), plugins, cache.Options{})
	name, err := desired.AddPodToVolume(cache.AddPodOptions{
		Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod-1"}},
		VolumeSpec: volume.NewSpecFromVolume(&v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{
			CSI: &v1.CSIVolumeSource{Driver: "fake.example.com"},
		}}),
		OuterVolumeSpecName: "scratch",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	wanted := desired.GetVolumesToMount()[0]
	if err := actual.MarkVolumeAsAttached(name, wanted.VolumeSpec, host.GetNodeName(), ""); err != nil {
		fmt.Println(err)
		return
	}
	executor := operationexecutor.NewOperationExecutor(
		operationexecutor.NewOperationGenerator(operationexecutor.GeneratorOptions{Plugins: plugins}), operationexecutor.ExecutorOptions{})
	operation, err := executor.MountVolume(ctx, wanted, operationexecutor.MountOptions{}, actual)
	if err != nil {
		fmt.Println("did not start:", err)
		return
	}
	<-operation.Done()
	fmt.Println("ended:", operation.Err())
	for _, mounted := range actual.GetMountedVolumes() {
		fmt.Println(mounted.MountPath)
	}
	// Output:
	// ended: <nil>
	// /node/pods/pod-1/volumes/example.com~fake/scratch
}
