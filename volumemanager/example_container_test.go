package volumemanager_test

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// From a pod whose volumes are ready to what a runtime is told, in the words of OCI and of CRI.
func ExampleManager_ContainerMounts() {
	ctx, cancel := context.WithCancel(context.Background())
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/var/lib/agent", NodeName: "node-1"})
	check(err)
	plugins := volume.NewVolumePluginMgr(host)
	mounter := fake.NewMounter(fake.MounterOptions{})
	check(plugins.InitPlugins(ctx, fake.NewPlugin(fake.PluginOptions{Mounter: mounter})))
	manager, err := volumemanager.New(plugins, volumemanager.Options{Mounter: mounter, NoRecords: true, RecursiveReadOnly: true})
	check(err)
	ended := make(chan error, 1)
	go func() { ended <- manager.Run(ctx) }()

	pod := podWith(v1.Volume{
		Name: "site", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "fake.example.com"}},
	})
	recursive := v1.RecursiveReadOnlyIfPossible
	pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{
		{Name: "site", MountPath: "/srv/www/static", ReadOnly: true, RecursiveReadOnly: &recursive},
		{Name: "site", MountPath: "/srv"},
	}
	check(manager.AddPod(ctx, pod))
	check(manager.WaitForAttachAndMount(ctx, pod))

	volumes, err := manager.ContainerMounts(ctx, pod, "main")
	check(err)
	for _, m := range volumes.OCI().Mounts {
		fmt.Println(m.Destination, m.Options)
	}
	for _, m := range volumes.CRI().Mounts {
		fmt.Println(m.ContainerPath, m.Propagation, m.Readonly, m.RecursiveReadOnly)
	}
	// The container runs here. When it has ended:
	check(manager.ReleaseContainer(ctx, pod.UID, "main"))

	cancel()
	check(<-ended)

	// Output:
	// /srv [rbind rprivate rw]
	// /srv/www/static [rbind rprivate rro]
	// /srv PROPAGATION_PRIVATE false false
	// /srv/www/static PROPAGATION_PRIVATE true true
}

// The status of a node is a table for people; json.Marshal has the same for programs.
func ExampleManager_Status() {
	ctx, cancel := context.WithCancel(context.Background())
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/var/lib/agent", NodeName: "node-1"})
	check(err)
	plugins := volume.NewVolumePluginMgr(host)
	mounter := fake.NewMounter(fake.MounterOptions{})
	check(plugins.InitPlugins(ctx, fake.NewPlugin(fake.PluginOptions{Mounter: mounter})))
	manager, err := volumemanager.New(plugins, volumemanager.Options{Mounter: mounter, NoRecords: true})
	check(err)
	ended := make(chan error, 1)
	go func() { ended <- manager.Run(ctx) }()
	pod := podWith(v1.Volume{
		Name: "site", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "fake.example.com"}},
	})
	check(manager.AddPod(ctx, pod))
	manager.PodsComplete()
	check(manager.WaitForAttachAndMount(ctx, pod))

	fmt.Println(manager.Status())

	cancel()
	check(<-ended)

	// Output:
	// POD          VOLUME  PLUGIN            PHASE    PATH
	// default/web  site    example.com/fake  mounted  /var/lib/agent/pods/0b8f/volumes/example.com~fake/site
}
