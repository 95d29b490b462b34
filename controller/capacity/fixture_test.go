package capacity_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/controller/capacity"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

type noMounts struct{ mount.Interface }

const gib = int64(1) << 30

// world is a store and a fake plugin of 100 GiB, in a bubble of synctest. Its nodes a1 and a2 are in zone a, b1 is in zone b.
type world struct {
	t       *testing.T
	store   store.Store
	plugin  *fake.Plugin
	plugins *volume.VolumePluginMgr
	events  *fake.Recorder
	log     logged
}

// logged is a log that may be read while it is written.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// count returns how often a text was logged.
func (l *logged) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

func inWorld(t *testing.T, options fake.PluginOptions, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: "n"})
		require.NoError(t, err)
		options.Mounter = noMounts{}
		w := &world{
			t: t, store: store.NewMemory(store.MemoryOptions{}), plugin: fake.NewPlugin(options),
			plugins: volume.NewVolumePluginMgr(host), events: &fake.Recorder{},
		}
		require.NoError(t, w.plugins.InitPlugins(t.Context(), w.plugin))
		for node, zone := range map[string]string{"a1": "a", "a2": "a", "b1": "b"} {
			w.create(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{"zone": zone, v1.LabelHostname: node}}})
			w.create(csiNode(node, "zone"))
		}
		test(w)
	})
}

func csiNode(name string, keys ...string) *storagev1.CSINode {
	return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
		{Name: volume.DriverOfPluginName(fake.DefaultPluginName), NodeID: name, TopologyKeys: keys},
	}}}
}

func classOf(name string, parameters map[string]string) *storagev1.StorageClass {
	late := storagev1.VolumeBindingWaitForFirstConsumer
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: fake.DefaultPluginName, VolumeBindingMode: &late, Parameters: parameters,
	}
}

func volumeOf(name string, bytes int64) *v1.PersistentVolume {
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeSpec{
		Capacity:    v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)},
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
			Driver: volume.DriverOfPluginName(fake.DefaultPluginName), VolumeHandle: name,
		}},
	}}
}

// start runs a controller that does not poll, unless change says otherwise.
func (w *world) start(change ...func(*capacity.Options)) (stop func()) {
	w.t.Helper()
	options := capacity.Options{
		Namespace: "storage", PollInterval: -1, Events: w.events, Logger: slog.New(slog.NewTextHandler(&w.log, nil)), Jitter: -1,
	}
	for _, c := range change {
		c(&options)
	}
	c, err := capacity.New(w.plugins, w.store, options)
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); require.NoError(w.t, <-ended) })
	w.t.Cleanup(stop)
	synctest.Wait()
	return stop
}

func (w *world) create(obj store.Object) {
	w.t.Helper()
	_, err := w.store.Create(w.t.Context(), obj)
	require.NoError(w.t, err)
	synctest.Wait()
}

func (w *world) delete(obj store.Object) {
	w.t.Helper()
	key, err := store.KeyOf(obj)
	require.NoError(w.t, err)
	require.NoError(w.t, w.store.Delete(w.t.Context(), key, store.Preconditions{}))
	synctest.Wait()
}

func change[T store.Object](w *world, obj T, f func(T)) {
	w.t.Helper()
	now, err := store.Get[T](w.t.Context(), w.store, obj.GetNamespace(), obj.GetName())
	require.NoError(w.t, err)
	f(now)
	_, err = store.Update(w.t.Context(), w.store, now)
	require.NoError(w.t, err)
	synctest.Wait()
}

func (w *world) objects() []*storagev1.CSIStorageCapacity {
	w.t.Helper()
	all, _, err := store.ListOf[*storagev1.CSIStorageCapacity](w.t.Context(), w.store, "")
	require.NoError(w.t, err)
	return all
}

// said returns the capacities in GiB by class and zone; -1 for none.
func (w *world) said() map[string]int64 {
	said := map[string]int64{}
	for _, o := range w.objects() {
		n := int64(-1)
		if o.Capacity != nil {
			n = o.Capacity.Value() / gib
		}
		said[o.StorageClassName+"/"+o.NodeTopology.MatchLabels["zone"]] = n
	}
	return said
}

// versions returns the versions of all objects.
func (w *world) versions() map[string]string {
	versions := map[string]string{}
	for _, o := range w.objects() {
		versions[o.Name] = o.ResourceVersion
	}
	return versions
}

// asked returns how often the plugin was asked for its capacity.
func (w *world) asked() int {
	n := 0
	for _, call := range w.plugin.Calls() {
		if call.Method == fake.MethodGetCapacity {
			n++
		}
	}
	return n
}

// wait lets time pass.
func wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
