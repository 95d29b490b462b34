package snapshot_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/controller/snapshot"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// A snapshot of a claim is taken, and another claim is restored from it.
func ExampleController() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	host, err := volume.NewHost(volume.HostOptions{RootDir: os.TempDir(), NodeName: "node-1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	plugins := volume.NewVolumePluginMgr(host)
	if err := plugins.InitPlugins(ctx, fake.NewPlugin(fake.PluginOptions{Mounter: fake.NewMounter(fake.MounterOptions{})})); err != nil {
		fmt.Println(err)
		return
	}
	kinds, err := store.NewKindTable(snapshot.Kinds()...)
	if err != nil {
		fmt.Println(err)
		return
	}
	objects := store.NewMemory(store.MemoryOptions{Kinds: kinds})
	snapshots := snapshot.New(plugins, objects, snapshot.Options{})
	claims := persistentvolume.New(plugins, objects, persistentvolume.Options{Snapshots: snapshots})
	ended := make(chan error, 2)
	go func() { ended <- snapshots.Run(ctx) }()
	go func() { ended <- claims.Run(ctx) }()

	taken := &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "before-upgrade", UID: "2"}}
	taken.Spec.Source.PersistentVolumeClaimName, taken.Spec.VolumeSnapshotClassName = new("data"), new("fast")
	restored := claimOf("restored")
	restored.Spec.DataSource = &v1.TypedLocalObjectReference{APIGroup: new(snapshotv1.GroupName), Kind: "VolumeSnapshot", Name: taken.Name}
	for _, obj := range []store.Object{
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: fake.DefaultPluginName},
		&snapshotv1.VolumeSnapshotClass{
			ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Driver: fake.DefaultPluginName, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
		},
		claimOf("data"), taken, restored,
	} {
		if _, err := objects.Create(ctx, obj); err != nil {
			fmt.Println(err)
			return
		}
	}
	err = store.WaitForNone(ctx, objects, func(claim *v1.PersistentVolumeClaim) bool { return claim.Status.Phase != v1.ClaimBound })
	if err == nil {
		taken, err = store.Get[*snapshotv1.VolumeSnapshot](ctx, objects, "default", taken.Name)
	}
	fmt.Println(taken.Name, "is ready:", *taken.Status.ReadyToUse, *taken.Status.BoundVolumeSnapshotContentName)
	cancel()
	fmt.Println(errors.Join(err, <-ended, <-ended))
	// Output:
	// before-upgrade is ready: true snapcontent-2
	// <nil>
}

func claimOf(name string) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: new("fast"), AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
}
