package volumemanager

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

func TestLimitsOfPluginsAreReported(t *testing.T) {
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/node", NodeName: "node-1"})
	require.NoError(t, err)
	plugins := volume.NewVolumePluginMgr(host)
	world := fake.NewMounter(fake.MounterOptions{})
	limited := fake.NewPlugin(fake.PluginOptions{Name: "example.com/limited", Mounter: world, AttachLimit: 3})
	free := fake.NewPlugin(fake.PluginOptions{Name: "example.com/free", Mounter: world})
	plain := fake.NewPlugin(fake.PluginOptions{Name: "example.com/plain", Mounter: world, Without: volume.CapAttachLimits})
	require.NoError(t, plugins.InitPlugins(t.Context(), limited, free, plain))

	s := store.NewMemory(store.MemoryOptions{})
	_, err = s.Create(t.Context(), &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1"},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: "other.example.com", NodeID: "theirs"}, {Name: "limited.example.com", NodeID: "old"},
		}},
	})
	require.NoError(t, err)
	reported := func(node string) map[string]int32 {
		object, err := store.Get[*storagev1.CSINode](t.Context(), s, "", node)
		require.NoError(t, err)
		limits := map[string]int32{}
		for _, d := range object.Spec.Drivers {
			limits[d.Name] = -1
			if d.Allocatable != nil {
				limits[d.Name] = *d.Allocatable.Count
			}
		}
		return limits
	}
	require.NoError(t, ReportLimits(t.Context(), plugins, s, "node-1"))
	assert.Equal(t, map[string]int32{"other.example.com": -1, "limited.example.com": 3, "free.example.com": -1}, reported("node-1"))

	cause := errors.New("it does not know")
	limited.Inject(fake.MethodGetVolumeLimits, fake.FailN(1, cause))
	require.ErrorIs(t, ReportLimits(t.Context(), plugins, s, "node-2"), cause)
	assert.Equal(t, map[string]int32{"free.example.com": -1}, reported("node-2"))
}

// A CSI driver has an id of the node, and a topology, of its own.
func TestLimitsLeaveTheIdentityOfADriver(t *testing.T) {
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/node", NodeName: "node-1"})
	require.NoError(t, err)
	plugins := volume.NewVolumePluginMgr(host)
	limited := fake.NewPlugin(fake.PluginOptions{Name: "example.com/limited", Mounter: fake.NewMounter(fake.MounterOptions{}), AttachLimit: 3})
	require.NoError(t, plugins.InitPlugins(t.Context(), limited))
	s, count := store.NewMemory(store.MemoryOptions{}), int32(3)
	entry := storagev1.CSINodeDriver{Name: "limited.example.com", NodeID: "i-0123", TopologyKeys: []string{"zone"}}
	_, err = s.Create(t.Context(), &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{entry}},
	})
	require.NoError(t, err)
	require.NoError(t, ReportLimits(t.Context(), plugins, s, "node-1"))
	object, err := store.Get[*storagev1.CSINode](t.Context(), s, "", "node-1")
	require.NoError(t, err)
	entry.Allocatable = &storagev1.VolumeNodeResources{Count: &count}
	assert.Equal(t, []storagev1.CSINodeDriver{entry}, object.Spec.Drivers)
}

// busyStore never takes a write: another one always comes first.
type busyStore struct{ store.Store }

func (busyStore) Update(context.Context, runtime.Object) (runtime.Object, error) {
	return nil, store.ErrConflict
}

func (busyStore) Create(context.Context, runtime.Object) (runtime.Object, error) {
	return nil, store.ErrAlreadyExists
}

// The caller gets the error of a store that never takes the limits.
func TestLimitsThatCannotBeWrittenAreAnError(t *testing.T) {
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/node", NodeName: "node-1"})
	require.NoError(t, err)
	plugins := volume.NewVolumePluginMgr(host)
	require.NoError(t, plugins.InitPlugins(t.Context(), fake.NewPlugin(fake.PluginOptions{Mounter: fake.NewMounter(fake.MounterOptions{})})))
	s := store.NewMemory(store.MemoryOptions{})
	require.ErrorIs(t, ReportLimits(t.Context(), plugins, busyStore{s}, "node-1"), store.ErrConflict, "an object that is not read and is there")
	_, err = s.Create(t.Context(), &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}})
	require.NoError(t, err)
	require.ErrorIs(t, ReportLimits(t.Context(), plugins, busyStore{s}, "node-1"), store.ErrConflict)
}
