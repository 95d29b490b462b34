package snapshot

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// world is a store, a plugin and controllers on them. It lives in a bubble of synctest.
type world struct {
	t       *testing.T
	store   store.Store
	plugin  *fake.Plugin
	plugins *volume.VolumePluginMgr
	events  *fake.Recorder
}

type objectList []store.Object

func inWorld(t *testing.T, options fake.PluginOptions, objects objectList, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: "node-1"})
		require.NoError(t, err)
		kinds, err := store.NewKindTable(Kinds()...)
		require.NoError(t, err)
		options.Mounter = fake.NewMounter(fake.MounterOptions{})
		w := &world{
			t: t, store: store.NewMemory(store.MemoryOptions{Kinds: kinds}), plugin: fake.NewPlugin(options),
			plugins: volume.NewVolumePluginMgr(host), events: &fake.Recorder{},
		}
		require.NoError(t, w.plugins.InitPlugins(t.Context(), w.plugin))
		for _, obj := range objects {
			w.create(obj)
		}
		test(t, w)
	})
}

// start runs a controller on s until stop is called or the test ends.
func (w *world) start(s store.Store) (c *Controller, stop func()) {
	c = New(w.plugins, s, Options{Events: w.events, Workers: 1, Jitter: -1})
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(w.t, <-ended)
	})
	w.t.Cleanup(stop)
	return c, stop
}

// idle waits until nothing is going on, writes that lost against others and were tried again included. That takes less time of the
// bubble than the back-off of any plugin.
func idle() {
	time.Sleep(30 * time.Millisecond)
	synctest.Wait()
}

// settle waits until every back-off is over, too.
func settle() {
	time.Sleep(time.Hour)
	synctest.Wait()
}

func (w *world) create(obj store.Object) {
	w.t.Helper()
	_, err := w.store.Create(w.t.Context(), obj.DeepCopyObject())
	require.NoError(w.t, err)
	if pv, ok := obj.(*v1.PersistentVolume); ok {
		require.NoError(w.t, w.plugin.Backend().Create(pv.Spec.CSI.VolumeHandle, 1<<30))
	}
}

func (w *world) delete(obj store.Object) {
	w.t.Helper()
	key, err := store.KindsOf(w.store).KeyOf(obj)
	require.NoError(w.t, err)
	require.NoError(w.t, w.store.Delete(w.t.Context(), key, store.Preconditions{}))
	idle()
}

// change changes an object that is in the store.
func change[T store.Object](w *world, obj T, edit func(T)) {
	w.t.Helper()
	there, err := store.Get[T](w.t.Context(), w.store, obj.GetNamespace(), obj.GetName())
	require.NoError(w.t, err)
	edit(there)
	_, err = store.Update(w.t.Context(), w.store, there)
	require.NoError(w.t, err)
	idle()
}

func get[T store.Object](w *world, namespace, name string) T {
	w.t.Helper()
	obj, err := store.Get[T](w.t.Context(), w.store, namespace, name)
	require.NoError(w.t, err)
	return obj
}

func (w *world) snapshot(name string) *snapshotv1.VolumeSnapshot {
	w.t.Helper()
	return get[*snapshotv1.VolumeSnapshot](w, "default", name)
}

func (w *world) content(name string) *snapshotv1.VolumeSnapshotContent {
	w.t.Helper()
	return get[*snapshotv1.VolumeSnapshotContent](w, "", name)
}

func (w *world) group(name string) *groupv1.VolumeGroupSnapshot {
	w.t.Helper()
	return get[*groupv1.VolumeGroupSnapshot](w, "default", name)
}

func (w *world) claim(name string) *v1.PersistentVolumeClaim {
	w.t.Helper()
	return get[*v1.PersistentVolumeClaim](w, "default", name)
}

func isGone[T store.Object](w *world, namespace, name string) {
	w.t.Helper()
	_, err := store.Get[T](w.t.Context(), w.store, namespace, name)
	require.ErrorIs(w.t, err, store.ErrNotFound)
}

// handles returns the handles of all snapshots that the storage has.
func (w *world) handles() []string {
	handles := []string{}
	for _, s := range w.plugin.Backend().Snapshots() {
		handles = append(handles, s.Handle)
	}
	slices.Sort(handles)
	return handles
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

// reasons returns the reasons of all events, each once.
func (w *world) reasons() []string {
	var reasons []string
	for _, e := range w.events.Events() {
		if !slices.Contains(reasons, e.Reason) {
			reasons = append(reasons, e.Reason)
		}
	}
	return reasons
}

// requireReady fails unless a snapshot is bound and ready to use, and its claim is released.
func (w *world) requireReady(name string) *snapshotv1.VolumeSnapshotContent {
	w.t.Helper()
	snap := w.snapshot(name)
	require.NotNil(w.t, snap.Status)
	require.Nil(w.t, snap.Status.Error, "%v", snap.Status.Error)
	require.True(w.t, deref(snap.Status.ReadyToUse))
	content := w.content(*snap.Status.BoundVolumeSnapshotContentName)
	require.Equal(w.t, snap.UID, content.Spec.VolumeSnapshotRef.UID)
	require.NotEmpty(w.t, deref(content.Status.SnapshotHandle))
	require.NotContains(w.t, content.Annotations, AnnBeingCreated)
	return content
}

// requireError fails unless the status of a snapshot has an error that says text.
func (w *world) requireError(name, text string) {
	w.t.Helper()
	status := w.snapshot(name).Status
	require.NotNil(w.t, status)
	require.NotNil(w.t, status.Error)
	require.NotNil(w.t, status.Error.Time)
	require.Contains(w.t, *status.Error.Message, text)
	require.False(w.t, *status.ReadyToUse)
}

const driver = fake.DefaultPluginName

// bound returns a claim and its volume.
func bound(name string, edit ...func(*v1.PersistentVolumeClaim)) objectList {
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: v1.PersistentVolumeClaimSpec{
			VolumeName: "pv-" + name, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
		},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
	}
	for _, f := range edit {
		f(claim)
	}
	return objectList{claim, &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: claim.Spec.AccessModes, Capacity: claim.Spec.Resources.Requests,
			ClaimRef: &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: name, UID: claim.UID},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: volume.DriverOfPluginName(driver), VolumeHandle: "volume-" + name,
			}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
	}}
}

func newClass(name string, edit ...func(*snapshotv1.VolumeSnapshotClass)) *snapshotv1.VolumeSnapshotClass {
	class := &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Driver: driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}
	for _, f := range edit {
		f(class)
	}
	return class
}

func isDefault(class *snapshotv1.VolumeSnapshotClass) {
	class.Annotations = map[string]string{AnnDefaultClass: "true"}
}

func retains(class *snapshotv1.VolumeSnapshotClass) {
	class.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
}

// newSnapshot returns a snapshot of a claim.
func newSnapshot(name, claim, class string) *snapshotv1.VolumeSnapshot {
	snap := &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	snap.Spec.Source.PersistentVolumeClaimName = &claim
	if class != "" {
		snap.Spec.VolumeSnapshotClassName = &class
	}
	return snap
}

// snapshotOf returns a snapshot that names a content.
func snapshotOf(name, content string) *snapshotv1.VolumeSnapshot {
	snap := newSnapshot(name, "", "")
	snap.Spec.Source = snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: &content}
	return snap
}

// newByHand returns a content of a snapshot that exists.
func newByHand(name, handle, snap string) *snapshotv1.VolumeSnapshotContent {
	content := &snapshotv1.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: name}}
	content.Spec = snapshotv1.VolumeSnapshotContentSpec{
		VolumeSnapshotRef: v1.ObjectReference{Namespace: "default", Name: snap}, Driver: driver,
		DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, Source: snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: &handle},
	}
	return content
}

// restoring returns a claim that is to be restored from a snapshot.
func restoring(name, snap string) *v1.PersistentVolumeClaim {
	claim := bound(name)[0].(*v1.PersistentVolumeClaim)
	claim.Spec.VolumeName, claim.Status.Phase = "", v1.ClaimPending
	claim.Spec.DataSource = &v1.TypedLocalObjectReference{APIGroup: new(snapshotv1.GroupName), Kind: "VolumeSnapshot", Name: snap}
	return claim
}

// begun makes a claim one for which a volume may have been begun.
func begun(claim *v1.PersistentVolumeClaim) *v1.PersistentVolumeClaim {
	claim.Finalizers = []string{objects.FinalizerProvisioning}
	return claim
}

func labelled(claim *v1.PersistentVolumeClaim) { claim.Labels = map[string]string{"app": "db"} }

func newGroupClass(name string, edit ...func(*groupv1.VolumeGroupSnapshotClass)) *groupv1.VolumeGroupSnapshotClass {
	class := &groupv1.VolumeGroupSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Driver: driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}
	for _, f := range edit {
		f(class)
	}
	return class
}

func newGroup(name, class string) *groupv1.VolumeGroupSnapshot {
	group := &groupv1.VolumeGroupSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	group.Spec.Source.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}
	if class != "" {
		group.Spec.VolumeGroupSnapshotClassName = &class
	}
	return group
}
