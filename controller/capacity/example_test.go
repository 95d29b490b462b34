package capacity_test

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/controller/capacity"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// The controller publishes how much a plugin can still make in each segment, for schedulers.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	objects := store.NewMemory(store.MemoryOptions{})
	late := storagev1.VolumeBindingWaitForFirstConsumer
	_, err := store.Create(ctx, objects, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: fake.DefaultPluginName, VolumeBindingMode: &late,
	})
	check(err)
	plugins := volume.NewVolumePluginMgr(fake.NewHost("node-1"))
	plugin := fake.NewPlugin(fake.PluginOptions{Mounter: fake.NewMounter(fake.MounterOptions{}), Capacity: 100 << 30})
	check(plugins.InitPlugins(ctx, plugin))
	list, err := objects.List(ctx, store.CSIStorageCapacities, "storage")
	check(err)
	changes, err := objects.Watch(ctx, store.CSIStorageCapacities, "storage", list.ResourceVersion)
	check(err)

	controller, err := capacity.New(plugins, objects, capacity.Options{
		Namespace: "storage", Segments: map[string][]map[string]string{fake.DefaultPluginName: {{v1.LabelHostname: "node-1"}}},
	})
	check(err)
	done := make(chan error, 1)
	go func() { done <- controller.Run(ctx) }()
	if said, ok := (<-changes).Object.(*storagev1.CSIStorageCapacity); ok {
		fmt.Println(said.StorageClassName, said.NodeTopology.MatchLabels[v1.LabelHostname], said.Capacity)
	}
	cancel()
	<-done
	// Output: fast node-1 100Gi
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
