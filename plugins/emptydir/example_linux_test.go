package emptydir_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/plugins/emptydir"
	"github.com/volumekit/volumekit/volume"
)

// A pod gets a directory of its own, whose content goes with the pod.
func ExampleNew() {
	ctx := context.Background()
	root, err := os.MkdirTemp("", "node")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(root)
	host, err := volume.NewHost(volume.HostOptions{RootDir: root, NodeName: "node-1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	plugin := emptydir.New(emptydir.Options{Mounter: fake.NewMounter(fake.MounterOptions{})})
	if err := volume.NewVolumePluginMgr(host).InitPlugins(ctx, plugin); err != nil {
		fmt.Println(err)
		return
	}
	spec := volume.NewSpecFromVolume(&v1.Volume{Name: "cache", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
	mounter, err := plugin.NewMounter(spec, &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod-1"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("set up:", mounter.SetUp(ctx, volume.MounterArgs{}))
	file := filepath.Join(mounter.GetPath(), "file")
	fmt.Println("written:", os.WriteFile(file, nil, 0o600))
	unmounter, err := plugin.NewUnmounter("cache", "pod-1")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("torn down:", unmounter.TearDown(ctx))
	_, err = os.Stat(file)
	fmt.Println("gone:", os.IsNotExist(err))
	// Output:
	// set up: <nil>
	// written: <nil>
	// torn down: <nil>
	// gone: true
}
