package persistentvolume

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// noMounts is the mounter of a plugin that mounts nothing here.
type noMounts struct{ mount.Interface }

func (noMounts) IsMountPoint(context.Context, string) (bool, error) { return false, nil }

// world is a store, a plugin and controllers on them. It lives in a bubble of synctest.
type world struct {
	t       *testing.T
	store   store.Store
	plugin  *fake.Plugin
	plugins *volume.VolumePluginMgr
	events  *fake.Recorder
}

// inWorld runs test in a bubble, with a world that holds objects.
func inWorld(t *testing.T, objects []store.Object, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: "node-1"})
		require.NoError(t, err)
		w := &world{
			t:       t,
			store:   store.NewMemory(store.MemoryOptions{}),
			plugin:  fake.NewPlugin(fake.PluginOptions{Mounter: noMounts{}}),
			plugins: volume.NewVolumePluginMgr(host),
			events:  &fake.Recorder{},
		}
		require.NoError(t, w.plugins.InitPlugins(t.Context(), w.plugin))
		for _, obj := range objects {
			w.create(obj)
			if obj.GetLabels()["dying"] != "" {
				key, err := store.KeyOf(obj)
				require.NoError(t, err)
				require.NoError(t, w.store.Delete(t.Context(), key, store.Preconditions{}))
			}
		}
		test(t, w)
	})
}

// start runs a controller on s until stop is called or the test ends.
func (w *world) start(s store.Store, options Options) (c *Controller, stop func()) {
	if options.Events == nil {
		options.Events = w.events
	}
	c = New(w.plugins, s, options)
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			require.NoError(w.t, err)
		case <-time.After(24 * time.Hour):
			w.t.Error("Run has not returned a day after its context ended")
		}
	})
	w.t.Cleanup(stop)
	return c, stop
}

// idle waits until nothing is going on, writes that lost against others and were tried again included. That takes less
// time of the bubble than the back-off of any plugin.
func idle() {
	time.Sleep(30 * time.Millisecond)
	synctest.Wait()
}

// settle runs a controller until it is idle.
func (w *world) settle() *Controller {
	c, _ := w.start(w.store, Options{})
	idle()
	return c
}

func (w *world) create(obj store.Object) {
	w.t.Helper()
	_, err := w.store.Create(w.t.Context(), obj.DeepCopyObject())
	require.NoError(w.t, err)
}

// delete deletes an object and waits until the controllers are idle.
func (w *world) delete(obj store.Object) {
	w.t.Helper()
	key, err := store.KeyOf(obj)
	require.NoError(w.t, err)
	require.NoError(w.t, w.store.Delete(w.t.Context(), key, store.Preconditions{}))
	idle()
}

func (w *world) claim(name string) *v1.PersistentVolumeClaim {
	w.t.Helper()
	claim, err := store.Get[*v1.PersistentVolumeClaim](w.t.Context(), w.store, "default", name)
	require.NoError(w.t, err)
	return claim
}

func (w *world) volume(name string) *v1.PersistentVolume {
	w.t.Helper()
	pv, err := store.Get[*v1.PersistentVolume](w.t.Context(), w.store, "", name)
	require.NoError(w.t, err)
	return pv
}

func (w *world) requireNoVolume(name string) {
	w.t.Helper()
	_, err := store.Get[*v1.PersistentVolume](w.t.Context(), w.store, "", name)
	require.ErrorIs(w.t, err, store.ErrNotFound)
}

// requireBound fails unless the claim and the volume are each other's, with every mark of it.
func (w *world) requireBound(claimName, volumeName string) {
	w.t.Helper()
	claim, pv := w.claim(claimName), w.volume(volumeName)
	require.Equal(w.t, volumeName, claim.Spec.VolumeName)
	require.Equal(w.t, v1.ClaimBound, claim.Status.Phase)
	require.Contains(w.t, claim.Annotations, objects.AnnBindCompleted)
	require.Equal(w.t, pv.Spec.AccessModes, claim.Status.AccessModes)
	require.Equal(w.t, pv.Spec.Capacity, claim.Status.Capacity)
	require.NotContains(w.t, claim.Finalizers, objects.FinalizerProvisioning)
	require.Equal(w.t, v1.VolumeBound, pv.Status.Phase)
	require.NotNil(w.t, pv.Spec.ClaimRef)
	require.Equal(w.t, claim.UID, pv.Spec.ClaimRef.UID)
	require.Equal(w.t, claimName, pv.Spec.ClaimRef.Name)
}

// reasons returns the reasons of all events, in order.
func (w *world) reasons() []string {
	var reasons []string
	for _, e := range w.events.Events() {
		reasons = append(reasons, e.Reason)
	}
	return reasons
}

// calls returns how often a method of the plugin was called.
func (w *world) calls(method fake.Method) int {
	n := 0
	for _, call := range w.plugin.Calls() {
		if call.Method == method {
			n++
		}
	}
	return n
}

func newClaim(name string, change ...func(*v1.PersistentVolumeClaim)) *v1.PersistentVolumeClaim {
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes:      []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			StorageClassName: ptr(""),
			Resources:        v1.VolumeResourceRequirements{Requests: size("1Gi")},
		},
	}
	for _, f := range change {
		f(claim)
	}
	return claim
}

func newVolume(name string, change ...func(*v1.PersistentVolume)) *v1.PersistentVolume {
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Capacity:    size("1Gi"),
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: volume.DriverOfPluginName(fake.DefaultPluginName), VolumeHandle: name,
			}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable},
	}
	for _, f := range change {
		f(pv)
	}
	return pv
}

func newClass(name string, change ...func(*storagev1.StorageClass)) *storagev1.StorageClass {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: fake.DefaultPluginName}
	for _, f := range change {
		f(class)
	}
	return class
}

func ptr[T any](v T) *T { return &v }

func size(s string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceStorage: resource.MustParse(s)}
}

// refTo makes a volume name a claim; uid may be empty.
func refTo(name string, uid types.UID) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) {
		pv.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: name, UID: uid}
	}
}

// names makes a claim name a volume.
func names(volumeName string) func(*v1.PersistentVolumeClaim) {
	return func(claim *v1.PersistentVolumeClaim) { claim.Spec.VolumeName = volumeName }
}

func ofClass(name string) func(*v1.PersistentVolumeClaim) {
	return func(claim *v1.PersistentVolumeClaim) { claim.Spec.StorageClassName = &name }
}

func openClass(claim *v1.PersistentVolumeClaim) { claim.Spec.StorageClassName = nil }

// completed makes a claim one whose bind was finished.
func completed(claim *v1.PersistentVolumeClaim) {
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, objects.AnnBindCompleted, objects.Yes)
	claim.Status.Phase = v1.ClaimBound
}

func policy(p v1.PersistentVolumeReclaimPolicy) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) { pv.Spec.PersistentVolumeReclaimPolicy = p }
}

func volumeAnnotation(key, value string) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) { metav1.SetMetaDataAnnotation(&pv.ObjectMeta, key, value) }
}

func late(class *storagev1.StorageClass) {
	class.VolumeBindingMode = ptr(storagev1.VolumeBindingWaitForFirstConsumer)
}

var errCrashed = errors.New("the process has crashed")

// crashing is a store as seen by a process that dies after a number of writes.
type crashing struct {
	store.Store

	mu     sync.Mutex
	left   int
	writes []string
}

func (s *crashing) write(obj runtime.Object, verb string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left <= 0 {
		return errCrashed
	}
	s.left--
	key, err := store.KeyOf(obj)
	if err != nil {
		return err
	}
	s.writes = append(s.writes, verb+" "+key.Kind.Kind)
	return nil
}

func (s *crashing) Create(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	if err := s.write(obj, "create"); err != nil {
		return nil, err
	}
	return s.Store.Create(ctx, obj)
}

func (s *crashing) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	if err := s.write(obj, "update"); err != nil {
		return nil, err
	}
	return s.Store.Update(ctx, obj)
}

func (s *crashing) Delete(ctx context.Context, key store.Key, p store.Preconditions) error {
	s.mu.Lock()
	dead := s.left <= 0
	if !dead {
		s.left--
		s.writes = append(s.writes, "delete "+key.Kind.Kind)
	}
	s.mu.Unlock()
	if dead {
		return errCrashed
	}
	return s.Store.Delete(ctx, key, p)
}

func (s *crashing) log() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.writes)
}
