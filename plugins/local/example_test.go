package local_test

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/plugins/local"
	"github.com/volumekit/volumekit/volume"
)

// A PersistentVolume names a directory or a disk of one node. The registry finds the plugin for it.
func ExampleNew() {
	plugins := volume.NewVolumePluginMgr(fake.NewHost(""))
	if err := plugins.InitPlugins(context.Background(), local.New(local.Options{Protected: []string{"/var/lib/agent"}})); err != nil {
		fmt.Println(err)
		return
	}
	spec := volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "disk-1"},
		Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{
			Local: &v1.LocalVolumeSource{Path: "/mnt/disks/1"},
		}},
	}, false)
	plugin, err := plugins.FindDeviceMountablePluginBySpec(spec)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(plugin.GetPluginName(), "stages", spec.Name())
	// Output: kubernetes.io/local-volume stages disk-1
}
