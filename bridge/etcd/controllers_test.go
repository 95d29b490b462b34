package etcd_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/bridge/etcd"
	"github.com/volumekit/volumekit/controller/capacity"
	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// noMounts is the mounter of a plugin that mounts nothing here.
type noMounts struct{ mount.Interface }

func pluginsWith(t *testing.T, options fake.PluginOptions) *volume.VolumePluginMgr {
	t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: "controller"})
	require.NoError(t, err)
	plugins := volume.NewVolumePluginMgr(host)
	options.Mounter = noMounts{}
	require.NoError(t, plugins.InitPlugins(t.Context(), fake.NewPlugin(options)))
	return plugins
}

// runUntilTheEnd runs a controller until the test ends.
func runUntilTheEnd(t *testing.T, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
}

func createAll(t *testing.T, s store.Store, objects ...store.Object) {
	t.Helper()
	for _, obj := range objects {
		_, err := s.Create(t.Context(), obj)
		require.NoError(t, err)
	}
}

// awaitAll waits until the objects of a kind are as is wanted, and returns them. It looks again after each of their changes.
func awaitAll[T store.Object](t *testing.T, s *etcd.Store, kind schema.GroupVersionKind, as func([]T) bool) []T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	all, version, err := store.ListOf[T](ctx, s, "")
	require.NoError(t, err)
	events, err := s.Watch(ctx, kind, "", version)
	require.NoError(t, err)
	for !as(all) {
		_, open := <-events
		require.True(t, open, "they stay as they are: %v", all)
		all, _, err = store.ListOf[T](ctx, s, "")
		require.NoError(t, err)
	}
	return all
}

func TestCapacityIsPublished(t *testing.T) {
	c := newCluster(t)
	s := c.store(c.clientOf(), "/capacity")
	const gib = 1 << 30
	controller, err := capacity.New(pluginsWith(t, fake.PluginOptions{Capacity: 100 * gib}), s, capacity.Options{Namespace: "storage", PollInterval: -1})
	require.NoError(t, err)
	runUntilTheEnd(t, controller.Run)
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "late"}, Provisioner: fake.DefaultPluginName, VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	createAll(t, s, class)
	for _, zone := range []string{"a", "b"} {
		createAll(t, s,
			&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-" + zone, Labels: map[string]string{"zone": zone}}},
			&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node-" + zone}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
				{Name: volume.DriverOfPluginName(fake.DefaultPluginName), NodeID: zone, TopologyKeys: []string{"zone"}},
			}}})
	}
	made := awaitAll(t, s, store.CSIStorageCapacities, func(all []*storagev1.CSIStorageCapacity) bool {
		return len(all) == 2 && all[0].Capacity != nil && all[1].Capacity != nil
	})
	for _, o := range made {
		assert.Equal(t, class.Name, o.StorageClassName)
		assert.EqualValues(t, 100*gib, o.Capacity.Value())
	}
	require.NoError(t, store.Delete(t.Context(), s, made[0]))
	awaitAll(t, s, store.CSIStorageCapacities, func(all []*storagev1.CSIStorageCapacity) bool { return len(all) == 2 && all[0].UID != made[0].UID })
	require.NoError(t, s.Delete(t.Context(), store.Key{Kind: store.StorageClasses, Name: class.Name}, store.Preconditions{}))
	awaitAll(t, s, store.CSIStorageCapacities, func(all []*storagev1.CSIStorageCapacity) bool { return len(all) == 0 })
}

// filler is a populator, and mounts nothing for it. The first attempts fail.
type filler struct {
	failures atomic.Int32
	filled   atomic.Int32
}

func (*filler) Fill(ctx context.Context, _ *v1.PersistentVolume, fill func(ctx context.Context, dir string) error) error {
	return fill(ctx, "/nowhere")
}

func (*filler) Release(context.Context, *v1.PersistentVolume) error { return nil }

func (f *filler) Populate(context.Context, persistentvolume.PopulateRequest) (digest string, err error) {
	if f.failures.Add(-1) >= 0 {
		return "", volume.Transient(assert.AnError)
	}
	f.filled.Add(1)
	return "sha256:full", nil
}

func TestAVolumeIsPopulated(t *testing.T) {
	c := newCluster(t)
	s := c.store(c.clientOf(), "/populated")
	archives, by := schema.GroupKind{Group: "example.com", Kind: "Archive"}, &filler{}
	by.failures.Store(2)
	controller := persistentvolume.New(pluginsWith(t, fake.PluginOptions{}), s, persistentvolume.Options{
		Populators: map[schema.GroupKind]persistentvolume.Populator{archives: by}, Filesystems: by, InitialBackoff: 10 * time.Millisecond,
	})
	runUntilTheEnd(t, controller.Run)
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: fake.DefaultPluginName}
	createAll(t, s, class, &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"},
		Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: &class.Name, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources:     v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
			DataSourceRef: &v1.TypedObjectReference{APIGroup: &archives.Group, Kind: archives.Kind, Name: "backup"},
		},
	})
	awaitAll(t, s, store.PersistentVolumeClaims, func(claims []*v1.PersistentVolumeClaim) bool {
		bound := len(claims) == 1 && claims[0].Status.Phase == v1.ClaimBound
		assert.False(t, bound && by.filled.Load() == 0, "a claim is bound when its volume is full")
		return bound
	})
	assert.EqualValues(t, 1, by.filled.Load())
}
