package fake_test

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// A volume of a pod, the first set-up of which has mounted and says that it has not. What the plugin was asked for, and what
// it has asked of the mounter, reads as the story of both.
func ExamplePlugin() {
	ctx := context.Background()
	world := fake.NewMounter(fake.MounterOptions{})
	plugin := fake.NewPlugin(fake.PluginOptions{Mounter: world})
	if err := volume.NewVolumePluginMgr(fake.NewHost("")).InitPlugins(ctx, plugin); err != nil {
		fmt.Println(err)
		return
	}
	plugin.Inject(fake.MethodSetUp, fake.FailAfter(volume.Uncertain(errors.New("no answer"))))

	spec := volume.NewSpecFromVolume(&v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{
		CSI: &v1.CSIVolumeSource{Driver: "fake.example.com"},
	}})
	mounter, err := plugin.NewMounter(spec, &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod-1"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = mounter.SetUp(ctx, volume.MounterArgs{})
	fmt.Println("uncertain:", errors.Is(err, volume.ErrUncertain))
	err = mounter.SetUp(ctx, volume.MounterArgs{})
	fmt.Println("then:", err)

	for _, call := range plugin.Calls() {
		fmt.Println("plugin: ", call)
	}
	for _, call := range world.Calls() {
		fmt.Println("mounter:", call)
	}
	// Output:
	// uncertain: true
	// then: <nil>
	// plugin:  Init
	// plugin:  NewMounter "scratch" for pod-1
	// plugin:  SetUp "scratch" for pod-1: no answer
	// plugin:  SetUp "scratch" for pod-1
	// mounter: IsMountPoint /node/pods/pod-1/volumes/example.com~fake/scratch: is "/node/pods/pod-1/volumes/example.com~fake/scratch" a mount point: no such file or directory
	// mounter: Mount tmpfs scratch at /node/pods/pod-1/volumes/example.com~fake/scratch (nosuid,nodev,rw)
	// mounter: IsMountPoint /node/pods/pod-1/volumes/example.com~fake/scratch
}

// A mount table and files in memory: a bind shows the same files, and a read-only one refuses to change them.
func ExampleMounter() {
	ctx := context.Background()
	world := fake.NewMounter(fake.MounterOptions{})
	for _, request := range []mount.Request{
		{Source: "tmpfs", Target: "/a", FSType: "tmpfs"},
		{Source: "/a", Target: "/b", Options: []string{"bind", "ro"}},
	} {
		if err := world.Mount(ctx, request); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(world.WriteFile("/a/file", []byte("hello"), 0o644))
	content, err := world.ReadFile("/b/file")
	fmt.Println(string(content), err)
	fmt.Println(world.WriteFile("/b/file", nil, 0o644))
	// Output:
	// <nil>
	// hello <nil>
	// open /b/file: read-only file system
}
