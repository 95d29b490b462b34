package files_test

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/plugins/files"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// The keys of a config map are files of the pod. The volume is set up in memory here; leave Options empty on a node.
func ExampleNewConfigMap() {
	ctx := context.Background()
	objects := store.NewMemory(store.MemoryOptions{})
	_, err := objects.Create(ctx, &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings"}, Data: map[string]string{"color": "blue"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	world := fake.NewMounter(fake.MounterOptions{})
	plugin := files.NewConfigMap(store.Getter{Store: objects}, files.Options{Mounter: world, Directories: world})
	if err := volume.NewVolumePluginMgr(fake.NewHost("")).InitPlugins(ctx, plugin); err != nil {
		fmt.Println(err)
		return
	}
	spec := volume.NewSpecFromVolume(&v1.Volume{Name: "config", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
		LocalObjectReference: v1.LocalObjectReference{Name: "settings"},
	}}})
	mounter, err := plugin.NewMounter(spec, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "pod-1"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(mounter.SetUp(ctx, volume.MounterArgs{}))
	content, err := world.ReadFile(mounter.GetPath() + "/color")
	fmt.Println(string(content), err)
	// Output:
	// <nil>
	// blue <nil>
}
