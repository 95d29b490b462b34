package cache_test

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
)

// What pods want is one state, what is known to be there another. Reconciling is to compare the two.
func Example() {
	host := fake.NewHost("")
	plugins := volume.NewVolumePluginMgr(host)
	plugin := fake.NewPlugin(fake.PluginOptions{Mounter: fake.NewMounter(fake.MounterOptions{})})
	if err := plugins.InitPlugins(context.Background(), plugin); err != nil {
		fmt.Println(err)
		return
	}
	desired := cache.NewDesiredStateOfWorld(plugins, cache.Options{})
	actual := cache.NewActualStateOfWorld(host.GetNodeName(), plugins, cache.Options{})
	name, err := desired.AddPodToVolume(cache.AddPodOptions{
		Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "pod-1"}},
		VolumeSpec: volume.NewSpecFromVolume(&v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{
			CSI: &v1.CSIVolumeSource{Driver: "fake.example.com"},
		}}),
		OuterVolumeSpecName: "scratch",
	})
	fmt.Println(name, err)
	for _, wanted := range desired.GetVolumesToMount() {
		fmt.Println(wanted.PodName, "wants", wanted.VolumeName, "known:", actual.VolumeExists(wanted.VolumeName))
	}
	// Output:
	// example.com/fake/pods/pod-1/scratch <nil>
	// pod-1 wants example.com/fake/pods/pod-1/scratch known: false
}
