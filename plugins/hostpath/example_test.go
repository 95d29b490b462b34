package hostpath_test

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/plugins/hostpath"
	"github.com/volumekit/volumekit/volume"
)

// A pod gets a directory of the node, but none that the operator protects.
func ExampleNew() {
	ctx := context.Background()
	world := fake.NewMounter(fake.MounterOptions{})
	plugin := hostpath.New(hostpath.Options{Protected: []string{"/srv/agent"}, Mounter: world, Files: world})
	err := errors.Join(
		volume.NewVolumePluginMgr(fake.NewHost("")).InitPlugins(ctx, plugin),
		world.MkdirAll("/srv/data", 0o755), world.MkdirAll("/srv/agent", 0o755))
	if err != nil {
		fmt.Println(err)
		return
	}
	kind := v1.HostPathDirectory
	for _, path := range []string{"/srv/data", "/srv/agent"} {
		spec := volume.NewSpecFromVolume(&v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{
			HostPath: &v1.HostPathVolumeSource{Path: path, Type: &kind},
		}})
		mounter, err := plugin.NewMounter(spec, &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod-1"}})
		if err == nil {
			err = mounter.SetUp(ctx, volume.MounterArgs{})
		}
		fmt.Println(path, "is given to the pod:", err == nil)
	}
	// Output:
	// /srv/data is given to the pod: true
	// /srv/agent is given to the pod: false
}
