package volumemanager_test

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// ociMount and ociDevice stand for Mount and LinuxDevice of github.com/opencontainers/runtime-spec/specs-go, and have
// their fields.
type (
	ociMount struct {
		Destination, Type, Source string
		Options                   []string
	}
	ociDevice struct {
		Path, Type   string
		Major, Minor int64
	}
)

// ociMountOf converts a mount. The label of SELinux is given by whoever writes the runtime's configuration: with
// m.Relabel it is set on all that lies at m.Source, before the container starts.
func ociMountOf(m volumemanager.ContainerMount) ociMount {
	options := []string{"rbind", map[v1.MountPropagationMode]string{
		v1.MountPropagationNone: "rprivate", v1.MountPropagationHostToContainer: "rslave", v1.MountPropagationBidirectional: "rshared",
	}[m.Propagation]}
	switch {
	case m.RecursiveReadOnly:
		options = append(options, "rro")
	case m.ReadOnly:
		options = append(options, "ro")
	default:
		options = append(options, "rw")
	}
	return ociMount{Destination: m.Target, Type: "bind", Source: m.Source, Options: options}
}

// ociDeviceOf converts a device, which the runtime makes in the container. d.Permissions go into linux.resources.devices,
// with the same type and number.
func ociDeviceOf(d volumemanager.ContainerDevice) ociDevice {
	return ociDevice{Path: d.Target, Type: "b", Major: int64(d.Major), Minor: int64(d.Minor)}
}

// criMount stands for Mount of k8s.io/cri-api/pkg/apis/runtime/v1; its Device takes d.Target, d.Source and d.Permissions as
// they are.
type criMount struct {
	ContainerPath, HostPath                     string
	Readonly, RecursiveReadOnly, SelinuxRelabel bool
	Propagation                                 string // a number there
}

// criMountOf converts a mount.
func criMountOf(m volumemanager.ContainerMount) criMount {
	return criMount{
		ContainerPath: m.Target, HostPath: m.Source,
		Readonly: m.ReadOnly, RecursiveReadOnly: m.RecursiveReadOnly, SelinuxRelabel: m.Relabel,
		Propagation: map[v1.MountPropagationMode]string{
			v1.MountPropagationNone: "PROPAGATION_PRIVATE", v1.MountPropagationHostToContainer: "PROPAGATION_HOST_TO_CONTAINER",
			v1.MountPropagationBidirectional: "PROPAGATION_BIDIRECTIONAL",
		}[m.Propagation],
	}
}

// From a pod whose volumes are ready to what a runtime is told, in the words of OCI and of CRI.
func ExampleManager_ContainerMounts() {
	ctx, cancel := context.WithCancel(context.Background())
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/var/lib/agent", NodeName: "node-1"})
	check(err)
	plugins := volume.NewVolumePluginMgr(host)
	mounter := fake.NewMounter(fake.MounterOptions{})
	check(plugins.InitPlugins(ctx, fake.NewPlugin(fake.PluginOptions{Mounter: mounter})))
	manager, err := volumemanager.New(plugins, volumemanager.Options{Mounter: mounter, RecursiveReadOnly: true})
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
	for _, m := range volumes.Mounts {
		oci, cri := ociMountOf(m), criMountOf(m)
		fmt.Println(oci.Destination, oci.Options)
		fmt.Println(cri.ContainerPath, cri.Propagation, cri.Readonly, cri.RecursiveReadOnly)
	}
	for _, d := range volumes.Devices {
		fmt.Println(ociDeviceOf(d).Path, d.Permissions)
	}
	// The container runs here. When it has ended:
	check(manager.ReleaseContainer(ctx, pod.UID, "main"))

	cancel()
	check(<-ended)

	// Output:
	// /srv [rbind rprivate rw]
	// /srv PROPAGATION_PRIVATE false false
	// /srv/www/static [rbind rprivate rro]
	// /srv/www/static PROPAGATION_PRIVATE true true
}
