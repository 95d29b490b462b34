package volumemanager_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// The life of a pod's volumes, from AddPod to RemovePod. The plugin is a fake that mounts in memory; an agent gives its
// plugins and the manager the mounter of package mount, and the manager a RuntimeDir.
func Example() {
	ctx := context.Background()
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/var/lib/agent", NodeName: "node-1"})
	check(err)
	plugins := volume.NewVolumePluginMgr(host)
	mounter := fake.NewMounter(fake.MounterOptions{})
	check(plugins.InitPlugins(ctx, fake.NewPlugin(fake.PluginOptions{Mounter: mounter})))
	manager, err := volumemanager.New(plugins, volumemanager.Options{Mounter: mounter, NoRecords: true, Store: store.NewMemory(store.MemoryOptions{})})
	check(err)
	ended := make(chan error, 1)
	go func() { ended <- manager.Run(ctx) }()

	pod := podWith(v1.Volume{
		Name: "scratch", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "fake.example.com"}},
	})
	check(manager.AddPod(ctx, pod))
	manager.PodsComplete() // all pods of this node have been added
	check(manager.WaitForAttachAndMount(ctx, pod))
	for name, v := range manager.GetMountedVolumesForPod(volume.GetUniquePodName(pod)) {
		fmt.Println(name, "is at", v.Path)
	}
	// Containers run here. When the last process of the pod has ended:
	check(manager.RemovePod(pod.UID))
	check(manager.WaitForUnmount(ctx, pod))
	fmt.Println("volumes of the pod:", len(manager.PodStatus(pod.UID)))

	check(manager.Stop(ctx)) // mounts of other pods would stay
	check(<-ended)

	// Output:
	// scratch is at /var/lib/agent/pods/0b8f/volumes/example.com~fake/scratch
	// volumes of the pod: 0
}

// The error of a wait says of each volume that is missing where it stands and what kept it from being ready.
func ExampleManager_WaitForAttachAndMount() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/var/lib/agent", NodeName: "node-1"})
	check(err)
	plugins := volume.NewVolumePluginMgr(host)
	mounter := fake.NewMounter(fake.MounterOptions{})
	check(plugins.InitPlugins(ctx, fake.NewPlugin(fake.PluginOptions{Mounter: mounter})))
	manager, err := volumemanager.New(plugins, volumemanager.Options{Mounter: mounter, NoRecords: true, Store: store.NewMemory(store.MemoryOptions{})})
	check(err)
	go func() { _ = manager.Run(ctx) }()

	pod := podWith(v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "database"},
	}})
	check(manager.AddPod(ctx, pod)) // the claim may still come
	short, stop := context.WithTimeout(ctx, 10*time.Millisecond)
	defer stop()
	err = manager.WaitForAttachAndMount(short, pod)

	var notReady *volume.NotReadyError
	if errors.As(err, &notReady) {
		for _, v := range notReady.Volumes {
			fmt.Println(v.OuterName, "is", v.Phase)
			fmt.Println("waits for its claim:", errors.Is(v.Err, volumemanager.ErrClaimNotReady))
		}
	}
	fmt.Println("in time:", !errors.Is(err, context.DeadlineExceeded))

	// Output:
	// data is unresolved
	// waits for its claim: true
	// in time: false
}

// A subscriber shows where the volumes of each pod stand, for a dashboard or the status of pods. It begins with what is
// there, and may take its time: what changes meanwhile is told once, as it is then.
func ExampleManager_Subscribe() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/var/lib/agent", NodeName: "node-1"})
	check(err)
	plugins := volume.NewVolumePluginMgr(host)
	mounter := fake.NewMounter(fake.MounterOptions{})
	check(plugins.InitPlugins(ctx, fake.NewPlugin(fake.PluginOptions{Mounter: mounter})))
	manager, err := volumemanager.New(plugins, volumemanager.Options{Mounter: mounter, NoRecords: true})
	check(err)
	go func() { _ = manager.Run(ctx) }()
	check(manager.AddPod(ctx, podWith(v1.Volume{
		Name: "scratch", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "fake.example.com"}},
	})))

	for change := range manager.Subscribe(ctx) {
		ready := 0
		for _, v := range change.Volumes {
			if v.Phase == volumemanager.PhaseMounted {
				ready++
			}
		}
		if ready == 1 && ready == len(change.Volumes) {
			fmt.Println("all volumes of pod", change.PodUID, "are ready")
			break
		}
	}

	// Output:
	// all volumes of pod 0b8f are ready
}

// podWith returns a pod with one container that mounts one volume.
func podWith(vol v1.Volume) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "0b8f"},
		Spec: v1.PodSpec{
			Volumes:    []v1.Volume{vol},
			Containers: []v1.Container{{Name: "main", VolumeMounts: []v1.VolumeMount{{Name: vol.Name, MountPath: "/data"}}}},
		},
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
