package scheduling_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/controller/scheduling"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// A pod waits for a node, and its claim for the pod. The pod gets a node that can have its volume, and the claim a new volume there.
func ExampleReservation_Bind() {
	ctx, cancel := context.WithCancel(context.Background())
	objects := store.NewMemory(store.MemoryOptions{})
	pod := podOfClaim("web", "data")
	for _, object := range []runtime.Object{zonedNode("node-a", "a"), waitingClass("disks"), claimOfClass("data", "disks"), pod} {
		if _, err := objects.Create(ctx, object); err != nil {
			fmt.Println(err)
		}
	}
	controller := persistentvolume.New(newPlugins(ctx), objects, persistentvolume.Options{}) // It makes and binds the volumes.
	scheduler := scheduling.New(objects, scheduling.Options{})
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{controller.Run, scheduler.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				fmt.Println(err)
			}
		})
	}
	defer running.Wait()
	defer cancel()
	scheduler.WaitSynced(ctx)

	node, err := place(ctx, scheduler, objects, pod)
	for errors.Is(err, scheduling.ErrPlaceAnew) {
		node, err = place(ctx, scheduler, objects, pod)
	}
	claim, getErr := store.Get[*v1.PersistentVolumeClaim](ctx, objects, "default", "data")
	if err := errors.Join(err, getErr); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("the pod runs on", node)
	fmt.Println("its claim is", claim.Status.Phase)
	// Output:
	// the pod runs on node-a
	// its claim is Bound
}

// place gives a pod the node with the highest score, after its claims are bound for that node.
func place(ctx context.Context, scheduler *scheduling.Scheduler, objects store.Store, pod *v1.Pod) (string, error) {
	found, err := scheduler.Find(pod)
	if err != nil {
		return "", err
	}
	best := ""
	for node, score := range found.Scores() { // only nodes that can have the volumes
		if best == "" || score > found.Score(best) {
			best = node
		}
	}
	if best == "" {
		return "", errors.New("no node can have the volumes: keep found.Waits()")
	}
	reservation, err := scheduler.Reserve(pod, best)
	if err != nil {
		return "", err
	}
	if err := reservation.Bind(ctx); err != nil {
		reservation.Release()
		return "", err
	}
	if err := assign(ctx, objects, pod, best); err != nil {
		reservation.Release()
		return "", err
	}
	return best, nil
}

// assign writes the node of a pod, unless another scheduler did. That ends the reservation.
func assign(ctx context.Context, objects store.Store, pod *v1.Pod, node string) error {
	now, err := store.Get[*v1.Pod](ctx, objects, pod.Namespace, pod.Name)
	if err != nil {
		return err
	}
	if now.UID != pod.UID || now.Spec.NodeName != "" {
		return fmt.Errorf("pod %q was made again, or has a node: %w", pod.Name, store.ErrConflict)
	}
	now.Spec.NodeName = node
	_, err = store.Update(ctx, objects, now)
	return err
}

func newPlugins(ctx context.Context) *volume.VolumePluginMgr {
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/var/lib/example", NodeName: "controller"}) // Nothing is mounted here.
	if err != nil {
		panic(err)
	}
	plugins := volume.NewVolumePluginMgr(host)
	if err := plugins.InitPlugins(ctx, fake.NewPlugin(fake.PluginOptions{Mounter: fake.NewMounter(fake.MounterOptions{})})); err != nil {
		panic(err)
	}
	return plugins
}

func podOfClaim(name, claim string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "pod-1"},
		Spec: v1.PodSpec{Volumes: []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}}},
	}
}

// waitingClass is a class whose claims wait for the node of their first pod.
func waitingClass(name string) *storagev1.StorageClass {
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: fake.DefaultPluginName, VolumeBindingMode: &wait}
}

func claimOfClass(name, class string) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
}
