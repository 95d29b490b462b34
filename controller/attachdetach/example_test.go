package attachdetach_test

import (
	"context"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/controller/attachdetach"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// A pod that has a node gets its volume attached there, and the node's status says so.
func ExampleController() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	host, err := volume.NewHost(volume.HostOptions{RootDir: os.TempDir(), NodeName: "control-plane"})
	if err != nil {
		fmt.Println(err)
		return
	}
	plugins := volume.NewVolumePluginMgr(host)
	err = plugins.InitPlugins(ctx, fake.NewPlugin(fake.PluginOptions{Mounter: fake.NewMounter(fake.MounterOptions{})}))
	objects := store.NewMemory(store.MemoryOptions{})
	for _, object := range []runtime.Object{boundVolume(), boundClaim(), podOnNode(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}} {
		if err == nil {
			_, err = objects.Create(ctx, object)
		}
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	controller := attachdetach.New(plugins, objects, attachdetach.Options{})
	ended := make(chan error, 1)
	go func() { ended <- controller.Run(ctx) }()
	err = printWhenAttached(ctx, objects)
	cancel()
	fmt.Println(err, <-ended)
	// Output:
	// node-1 has example.com/fake/disk-7
	// <nil> <nil>
}

// printWhenAttached waits until the status of the one node lists a volume.
func printWhenAttached(ctx context.Context, objects store.Store) error {
	nodes, version, err := store.ListOf[*v1.Node](ctx, objects, "")
	if err != nil {
		return err
	}
	events, err := objects.Watch(ctx, store.Nodes, "", version)
	if err != nil {
		return err
	}
	node := nodes[0]
	for len(node.Status.VolumesAttached) == 0 {
		event, ok := <-events
		if !ok {
			return context.Cause(ctx)
		}
		node, _ = event.Object.(*v1.Node)
	}
	fmt.Println(node.Name, "has", node.Status.VolumesAttached[0].Name)
	return nil
}

func boundVolume() *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "disk"},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			ClaimRef:    &v1.ObjectReference{Namespace: "default", Name: "data", UID: "claim-1"},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: volume.DriverOfPluginName(fake.DefaultPluginName), VolumeHandle: "disk-7",
			}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
	}
}

func boundClaim() *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "claim-1"},
		Spec:       v1.PersistentVolumeClaimSpec{VolumeName: "disk"},
		Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
	}
}

func podOnNode() *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "pod-1"},
		Spec: v1.PodSpec{NodeName: "node-1", Volumes: []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}},
	}
}
