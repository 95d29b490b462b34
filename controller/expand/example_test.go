package expand_test

import (
	"context"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/controller/expand"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// A bound claim asks for more: its volume gets the size, and the node that has it is to grow the filesystem.
func ExampleController() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	host, err := volume.NewHost(volume.HostOptions{RootDir: os.TempDir(), NodeName: "control-plane"})
	if err != nil {
		fmt.Println(err)
		return
	}
	plugin := fake.NewPlugin(fake.PluginOptions{Mounter: fake.NewMounter(fake.MounterOptions{})})
	plugins := volume.NewVolumePluginMgr(host)
	objects := store.NewMemory(store.MemoryOptions{})
	err = plugins.InitPlugins(ctx, plugin)
	if err == nil {
		err = bindOneGibibyte(ctx, objects, plugin)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	controller := expand.New(plugins, objects, expand.Options{})
	ended := make(chan error, 1)
	go func() { ended <- controller.Run(ctx) }()

	claim, err := store.Get[*v1.PersistentVolumeClaim](ctx, objects, "default", "data")
	if err == nil {
		claim.Spec.Resources.Requests = size("2Gi")
		_, err = store.Update(ctx, objects, claim)
	}
	if err == nil {
		err = printWhenExpanded(ctx, objects)
	}
	cancel()
	fmt.Println(err, <-ended)
	// Output:
	// volume pvc-1 has 2Gi
	// <nil> <nil>
}

// bindOneGibibyte stores a class that allows expansion, and a claim with the volume that the plugin has made for it.
func bindOneGibibyte(ctx context.Context, objects store.Store, plugin *fake.Plugin) error {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: fake.DefaultPluginName, AllowVolumeExpansion: ptr(true)}
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "1"},
		Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: ptr("fast"), VolumeName: "pvc-1", Resources: v1.VolumeResourceRequirements{Requests: size("1Gi")},
		},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, Capacity: size("1Gi")},
	}
	provisioner, err := plugin.NewProvisioner(volume.VolumeOptions{PVName: "pvc-1", PVC: claim})
	if err != nil {
		return err
	}
	pv, err := provisioner.Provision(ctx, nil, nil)
	if err != nil {
		return err
	}
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: "data", UID: "1"}
	for _, object := range []store.Object{class, claim, pv} {
		if _, err := objects.Create(ctx, object); err != nil {
			return err
		}
	}
	return nil
}

// printWhenExpanded waits until the one volume has another size than 1Gi.
func printWhenExpanded(ctx context.Context, objects store.Store) error {
	volumes, version, err := store.ListOf[*v1.PersistentVolume](ctx, objects, "")
	if err != nil {
		return err
	}
	events, err := objects.Watch(ctx, store.PersistentVolumes, "", version)
	if err != nil {
		return err
	}
	pv := volumes[0]
	for pv.Spec.Capacity.Storage().String() == "1Gi" {
		event, ok := <-events
		if !ok {
			return context.Cause(ctx)
		}
		pv, _ = event.Object.(*v1.PersistentVolume)
	}
	fmt.Println("volume", pv.Name, "has", pv.Spec.Capacity.Storage())
	return nil
}
