package snapshottest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/controller/snapshot"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// patience is how long a test waits for what must happen.
const patience = time.Minute

// makeStore returns a store that keeps the kinds of snapshots and is empty.
type makeStore func(t *testing.T) store.Store

func snapshotKinds(t *testing.T) *store.KindTable {
	t.Helper()
	kinds, err := store.NewKindTable(snapshot.Kinds()...)
	require.NoError(t, err)
	return kinds
}

// world is a store and a plugin.
type world struct {
	t       *testing.T
	store   store.Store
	plugin  *fake.Plugin
	changed chan struct{} // gets a value after a change of the store
}

func newWorld(t *testing.T, s store.Store, options fake.PluginOptions) *world {
	t.Helper()
	options.Mounter = fake.NewMounter(fake.MounterOptions{})
	w := &world{t: t, store: s, plugin: fake.NewPlugin(options), changed: make(chan struct{}, 1)}
	w.plugins() // A plugin does nothing before it is registered.
	ctx, cancel := context.WithCancel(t.Context())
	var feeds sync.WaitGroup
	t.Cleanup(func() { cancel(); feeds.Wait() })
	feeds.Go(func() { wakeBy[*snapshotv1.VolumeSnapshot](ctx, w) })
	feeds.Go(func() { wakeBy[*snapshotv1.VolumeSnapshotContent](ctx, w) })
	feeds.Go(func() { wakeBy[*groupv1.VolumeGroupSnapshot](ctx, w) })
	feeds.Go(func() { wakeBy[*groupv1.VolumeGroupSnapshotContent](ctx, w) })
	feeds.Go(func() { wakeBy[*v1.PersistentVolumeClaim](ctx, w) })
	return w
}

// waker wakes the goroutines that wait for a change of one kind.
type waker[T store.Object] struct{ w *world }

func (f waker[T]) Listed([]T)                 { f.w.wake() }
func (f waker[T]) Changed(store.EventType, T) { f.w.wake() }

func wakeBy[T store.Object](ctx context.Context, w *world) {
	store.Follow(ctx, w.store, waker[T]{w}, store.MirrorOptions{InitialBackoff: 10 * time.Millisecond})
}

func (w *world) wake() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// until waits until is returns true. It looks again after each change of the store.
func (w *world) until(what string, is func() bool) {
	w.t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for !is() {
		select {
		case <-w.changed:
		case <-timeout.C:
			w.t.Fatalf("it does not come to pass: %s; there is:\n%s", what, strings.Join(w.ends(), ""))
		}
	}
}

// start runs a controller on s, which may be that of the world in disguise, until stop is called or the test ends.
func (w *world) start(s store.Store) (c *snapshot.Controller, stop func()) {
	w.t.Helper()
	c = snapshot.New(w.plugins(), s, snapshot.Options{InitialBackoff: 5 * time.Millisecond, MaxBackoff: 50 * time.Millisecond})
	return c, w.run(c.Run)
}

// run runs a controller until stop is called or the test ends.
func (w *world) run(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(w.t, <-ended)
	})
	w.t.Cleanup(stop)
	return stop
}

// plugins returns the world's plugin as a new process has it.
func (w *world) plugins() *volume.VolumePluginMgr {
	w.t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: w.t.TempDir(), NodeName: "controller"})
	require.NoError(w.t, err)
	plugins := volume.NewVolumePluginMgr(host)
	require.NoError(w.t, plugins.InitPlugins(w.t.Context(), w.plugin))
	return plugins
}

func create[T store.Object](w *world, obj T) T {
	w.t.Helper()
	created, err := store.Create(w.t.Context(), w.store, obj)
	require.NoError(w.t, err)
	return created
}

// find returns the object of that name, and false if there is none.
func find[T store.Object](w *world, namespace, name string) (T, bool) {
	w.t.Helper()
	obj, err := store.Get[T](w.t.Context(), w.store, namespace, name)
	if err != nil {
		require.ErrorIs(w.t, err, store.ErrNotFound)
	}
	return obj, err == nil
}

func list[T store.Object](w *world) []T {
	w.t.Helper()
	all, _, err := store.ListOf[T](w.t.Context(), w.store, "")
	require.NoError(w.t, err)
	return all
}

// drop deletes an object, whatever its version.
func (w *world) drop(obj store.Object) {
	w.t.Helper()
	key, err := store.KindsOf(w.store).KeyOf(obj)
	require.NoError(w.t, err)
	require.NoError(w.t, w.store.Delete(w.t.Context(), key, store.Preconditions{}))
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

// ready returns a snapshot and its content once the snapshot is ready to use.
func (w *world) ready(name string) (snap *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent) {
	w.t.Helper()
	w.until("snapshot "+name+" is ready", func() bool {
		snap, _ = find[*snapshotv1.VolumeSnapshot](w, "default", name)
		return isReady(snap)
	})
	content, found := find[*snapshotv1.VolumeSnapshotContent](w, "", *snap.Status.BoundVolumeSnapshotContentName)
	require.True(w.t, found)
	require.Equal(w.t, snap.UID, content.Spec.VolumeSnapshotRef.UID)
	return snap, content
}

func isReady(snap *snapshotv1.VolumeSnapshot) bool {
	return snap != nil && snap.Status != nil && snap.Status.ReadyToUse != nil && *snap.Status.ReadyToUse
}

// gone waits until no object of that name is left.
func gone[T store.Object](w *world, namespace, name string) {
	w.t.Helper()
	w.until(name+" is gone", func() bool {
		_, there := find[T](w, namespace, name)
		return !there
	})
}

// ends says what is in the store and in the storage, without what differs from one run to the next.
func (w *world) ends() []string {
	w.t.Helper()
	lines := []string{fmt.Sprintln("storage", len(w.handles()))}
	for _, s := range list[*snapshotv1.VolumeSnapshot](w) {
		name := s.Name
		if len(s.OwnerReferences) > 0 {
			name = "of " + s.OwnerReferences[0].Name
		}
		lines = append(lines, fmt.Sprintln("snapshot", name, sorted(s.Finalizers), isReady(s), s.DeletionTimestamp != nil))
	}
	for _, c := range list[*snapshotv1.VolumeSnapshotContent](w) {
		ready := c.Status != nil && c.Status.ReadyToUse != nil && *c.Status.ReadyToUse
		lines = append(lines, fmt.Sprintln("content", c.Finalizers, ready, c.DeletionTimestamp != nil, keysOf(c.Annotations)))
	}
	for _, g := range list[*groupv1.VolumeGroupSnapshot](w) {
		ready := g.Status != nil && g.Status.ReadyToUse != nil && *g.Status.ReadyToUse
		lines = append(lines, fmt.Sprintln("group", g.Name, g.Finalizers, ready, g.DeletionTimestamp != nil))
	}
	for _, c := range list[*groupv1.VolumeGroupSnapshotContent](w) {
		lines = append(lines, fmt.Sprintln("content of a group", c.Finalizers, c.DeletionTimestamp != nil, keysOf(c.Annotations)))
	}
	for _, c := range list[*v1.PersistentVolumeClaim](w) {
		lines = append(lines, fmt.Sprintln("claim", c.Name, c.Finalizers))
	}
	slices.Sort(lines[1:])
	return lines
}

func sorted(texts []string) []string {
	texts = slices.Clone(texts)
	slices.Sort(texts)
	return texts
}

func keysOf(annotations map[string]string) []string {
	keys := []string{}
	for key := range annotations {
		keys = append(keys, key)
	}
	return sorted(keys)
}

var (
	driver   = volume.DriverOfPluginName(fake.DefaultPluginName)
	capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	modes    = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
)

func newClaim(name string) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       v1.PersistentVolumeClaimSpec{AccessModes: modes, Resources: v1.VolumeResourceRequirements{Requests: capacity}},
	}
}

// bound creates a claim with its volume. The claim has a label if app is not empty.
func (w *world) bound(name, app string) {
	w.t.Helper()
	claim := newClaim(name)
	claim.Spec.VolumeName, claim.Spec.StorageClassName = "pv-"+name, new("")
	claim.Status.Phase = v1.ClaimBound
	if app != "" {
		claim.Labels = map[string]string{"app": app}
	}
	claim = create(w, claim)
	create(w, &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: modes, Capacity: capacity,
			ClaimRef:               &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: name, UID: claim.UID},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "volume-" + name}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
	})
	require.NoError(w.t, w.plugin.Backend().Create("volume-"+name, 1<<30))
}

func newClass(policy snapshotv1.DeletionPolicy) *snapshotv1.VolumeSnapshotClass {
	return &snapshotv1.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Driver: driver, DeletionPolicy: policy}
}

func newSnapshot(name, claim string) *snapshotv1.VolumeSnapshot {
	snap := &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	snap.Spec.Source.PersistentVolumeClaimName, snap.Spec.VolumeSnapshotClassName = &claim, new("fast")
	return snap
}

// byHand creates a snapshot in the storage, and returns a content of it for the VolumeSnapshot of that name, and this one.
func (w *world) byHand(name string) (*snapshotv1.VolumeSnapshotContent, *snapshotv1.VolumeSnapshot) {
	w.t.Helper()
	pv, there := find[*v1.PersistentVolume](w, "", "pv-c")
	require.True(w.t, there)
	made, err := w.plugin.CreateSnapshot(w.t.Context(), volume.SnapshotOptions{
		Name: "old", Source: volume.NewSpecFromPersistentVolume(pv, false),
	})
	require.NoError(w.t, err)
	content := &snapshotv1.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: "by-hand"}}
	content.Spec = snapshotv1.VolumeSnapshotContentSpec{
		VolumeSnapshotRef: v1.ObjectReference{Namespace: "default", Name: name}, Driver: driver,
		DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, Source: snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: &made.Handle},
	}
	snap := newSnapshot(name, "")
	snap.Spec = snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: &content.Name}}
	return content, snap
}

func newGroupClass() *groupv1.VolumeGroupSnapshotClass {
	return &groupv1.VolumeGroupSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Driver: driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}
}

func newGroup(name string) *groupv1.VolumeGroupSnapshot {
	group := &groupv1.VolumeGroupSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	group.Spec.Source.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}
	group.Spec.VolumeGroupSnapshotClassName = new("fast")
	return group
}
