package persistentvolume_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// A claim of a class gets a volume that the class's plugin makes.
func ExampleController() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	plugins, err := pluginsOf(ctx, fake.NewPlugin(fake.PluginOptions{Mounter: fake.NewMounter(fake.MounterOptions{})}))
	if err != nil {
		fmt.Println(err)
		return
	}
	objects := store.NewMemory(store.MemoryOptions{})
	controller := persistentvolume.New(plugins, objects, persistentvolume.Options{})
	ended := make(chan error, 1)
	go func() { ended <- controller.Run(ctx) }()

	fast := "fast"
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: fast}, Provisioner: fake.DefaultPluginName}
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "1"},
		Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: &fast,
			AccessModes:      []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{
				Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
			},
		},
	}
	_, err = store.Create(ctx, objects, class)
	if err == nil {
		_, err = store.Create(ctx, objects, claim)
	}
	if err == nil {
		err = printWhenBound(ctx, objects)
	}
	cancel()
	fmt.Println(err, <-ended)
	// Output:
	// claim data has volume pvc-1
	// <nil> <nil>
}

// pluginsOf registers plugins for a node named node-1.
func pluginsOf(ctx context.Context, plugins ...volume.VolumePlugin) (*volume.VolumePluginMgr, error) {
	host, err := volume.NewHost(volume.HostOptions{RootDir: os.TempDir(), NodeName: "node-1"})
	if err != nil {
		return nil, err
	}
	registry := volume.NewVolumePluginMgr(host)
	return registry, registry.InitPlugins(ctx, plugins...)
}

// printWhenBound waits until the one claim is bound.
func printWhenBound(ctx context.Context, objects store.Store) error {
	claims, version, err := store.ListOf[*v1.PersistentVolumeClaim](ctx, objects, "default")
	if err != nil {
		return err
	}
	events, err := objects.Watch(ctx, store.PersistentVolumeClaims, "default", version)
	if err != nil {
		return err
	}
	claim := claims[0]
	for claim.Status.Phase != v1.ClaimBound {
		event, ok := <-events
		if !ok {
			return errors.New("the watch ended")
		}
		claim, _ = event.Object.(*v1.PersistentVolumeClaim)
	}
	fmt.Printf("claim %s has volume %s\n", claim.Name, claim.Spec.VolumeName)
	return nil
}
