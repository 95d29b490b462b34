package snapshottest

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/controller/snapshot"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
)

// testRows runs rows of docs/snapshots.md on stores that makeStore makes; the numbers are those of the rows.
func testRows(t *testing.T, makeStore makeStore) {
	for _, row := range []struct {
		name    string
		options fake.PluginOptions
		run     func(w *world)
	}{
		{"1, 2, 13, 14, 30: made, ready, deleted", fake.PluginOptions{UnreadySnapshots: true}, testLife},
		{"4, 5: the class comes late", fake.PluginOptions{}, testLateClass},
		{"20, 21: made by hand", fake.PluginOptions{}, testByHand},
		{"31: kept", fake.PluginOptions{}, testKept},
		{"32, 50, 51: restored", fake.PluginOptions{}, testRestored},
		{"60, 67, 68: a group", fake.PluginOptions{}, testGroup},
		{"writes that lose against others", fake.PluginOptions{}, testConflicts},
		{"two controllers at once", fake.PluginOptions{}, testTwo},
	} {
		t.Run(row.name, func(t *testing.T) { row.run(newWorld(t, makeStore(t), row.options)) })
	}
	t.Run("killed at each write", func(t *testing.T) { testKilled(t, makeStore) })
}

func testLife(w *world) {
	w.start(w.store)
	w.bound("c", "")
	class := newClass(snapshotv1.VolumeSnapshotContentDelete)
	class.Annotations = map[string]string{snapshot.AnnDefaultClass: "true"}
	create(w, class)
	unclassed := newSnapshot("s", "c")
	unclassed.Spec.VolumeSnapshotClassName = nil
	created := create(w, unclassed)
	w.until("the snapshot is made", func() bool {
		snap, _ := find[*snapshotv1.VolumeSnapshot](w, "default", "s")
		return snap.Status != nil && snap.Status.CreationTime != nil
	})
	require.Equal(w.t, []string{"snapshot-" + string(created.UID)}, w.handles())
	claim, _ := find[*v1.PersistentVolumeClaim](w, "default", "c")
	require.Contains(w.t, claim.Finalizers, snapshot.FinalizerSourceClaim)
	require.NoError(w.t, w.plugin.Backend().MakeSnapshotReady(w.handles()[0]))

	snap, content := w.ready("s")
	require.Equal(w.t, class.Name, *snap.Spec.VolumeSnapshotClassName)
	require.Equal(w.t, int64(1<<30), snap.Status.RestoreSize.Value())
	require.ElementsMatch(w.t, []string{snapshot.FinalizerBound, snapshot.FinalizerAsSource}, snap.Finalizers)
	require.Contains(w.t, content.Finalizers, snapshot.FinalizerContent)
	w.until("the claim is released", func() bool {
		claim, _ := find[*v1.PersistentVolumeClaim](w, "default", "c")
		return !slices.Contains(claim.Finalizers, snapshot.FinalizerSourceClaim)
	})
	w.drop(snap)
	gone[*snapshotv1.VolumeSnapshotContent](w, "", content.Name)
	gone[*snapshotv1.VolumeSnapshot](w, "default", "s")
	require.Empty(w.t, w.handles())
}

func testLateClass(w *world) {
	w.start(w.store)
	w.bound("c", "")
	create(w, newSnapshot("s", "c"))
	w.until("the snapshot says what it lacks", func() bool {
		snap, _ := find[*snapshotv1.VolumeSnapshot](w, "default", "s")
		return snap.Status != nil && snap.Status.Error != nil
	})
	create(w, newClass(snapshotv1.VolumeSnapshotContentDelete))
	snap, _ := w.ready("s")
	require.Nil(w.t, snap.Status.Error)
}

func testByHand(w *world) {
	w.start(w.store)
	w.bound("c", "")
	content, snap := w.byHand("s")
	create(w, snap)
	w.until("the snapshot says what it lacks", func() bool {
		snap, _ := find[*snapshotv1.VolumeSnapshot](w, "default", "s")
		return snap.Status != nil && snap.Status.Error != nil
	})
	create(w, content)
	w.ready("s")
	w.drop(snap)
	gone[*snapshotv1.VolumeSnapshotContent](w, "", content.Name)
	gone[*snapshotv1.VolumeSnapshot](w, "default", "s")
	require.Empty(w.t, w.handles())
}

func testKept(w *world) {
	w.start(w.store)
	w.bound("c", "")
	create(w, newClass(snapshotv1.VolumeSnapshotContentRetain))
	create(w, newSnapshot("s", "c"))
	snap, content := w.ready("s")
	w.drop(snap)
	gone[*snapshotv1.VolumeSnapshot](w, "default", "s")
	w.drop(content)
	gone[*snapshotv1.VolumeSnapshotContent](w, "", content.Name)
	require.Len(w.t, w.handles(), 1)
}

func testRestored(w *world) {
	c, _ := w.start(w.store)
	claims := persistentvolume.New(w.plugins(), w.store, persistentvolume.Options{Snapshots: c})
	create(w, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: fake.DefaultPluginName})
	w.bound("c", "")
	create(w, newClass(snapshotv1.VolumeSnapshotContentDelete))
	create(w, newSnapshot("s", "c"))
	restored := newClaim("r")
	restored.Spec.StorageClassName = new("fast")
	restored.Spec.DataSource = &v1.TypedLocalObjectReference{APIGroup: new(snapshotv1.GroupName), Kind: "VolumeSnapshot", Name: "s"}
	restored.Annotations = map[string]string{"volume.kubernetes.io/storage-provisioner": "another.example.com"} // It may have begun.
	create(w, restored)
	snap, _ := w.ready("s")
	w.drop(snap)
	create(w, newSnapshot("meanwhile", "c"))
	meanwhile, _ := w.ready("meanwhile")
	w.drop(meanwhile)
	gone[*snapshotv1.VolumeSnapshot](w, "default", "meanwhile")
	snap, kept := find[*snapshotv1.VolumeSnapshot](w, "default", "s")
	require.True(w.t, kept, "a volume may be restored from it")
	require.NotNil(w.t, snap.DeletionTimestamp)
	require.Len(w.t, w.handles(), 1)

	w.drop(restored)
	gone[*snapshotv1.VolumeSnapshot](w, "default", "s")
	require.Empty(w.t, w.handles())
	w.run(claims.Run)
	create(w, newSnapshot("t", "c"))
	w.ready("t")
	again := newClaim("again")
	again.Spec.StorageClassName, again.Spec.DataSource = restored.Spec.StorageClassName, restored.Spec.DataSource.DeepCopy()
	again.Spec.DataSource.Name = "t"
	create(w, again)
	w.until("the claim is restored", func() bool {
		claim, _ := find[*v1.PersistentVolumeClaim](w, "default", "again")
		return claim.Status.Phase == v1.ClaimBound
	})
	w.drop(newSnapshot("t", ""))
	gone[*snapshotv1.VolumeSnapshot](w, "default", "t")
	require.Empty(w.t, w.handles())
}

func testGroup(w *world) {
	w.start(w.store)
	w.bound("a", "db")
	w.bound("b", "db")
	create(w, newGroupClass())
	create(w, newGroup("g"))
	w.until("the group is ready", func() bool {
		group, _ := find[*groupv1.VolumeGroupSnapshot](w, "default", "g")
		return group.Status != nil && group.Status.ReadyToUse != nil && *group.Status.ReadyToUse
	})
	w.until("its snapshots are ready", func() bool {
		ready := 0
		for _, snap := range list[*snapshotv1.VolumeSnapshot](w) {
			if isReady(snap) {
				ready++
			}
		}
		return ready == 2
	})
	require.Len(w.t, w.handles(), 2)
	w.drop(list[*snapshotv1.VolumeSnapshot](w)[0])
	w.until("a snapshot is being deleted", func() bool {
		snaps := list[*snapshotv1.VolumeSnapshot](w)
		return len(snaps) == 2 && (snaps[0].DeletionTimestamp != nil) != (snaps[1].DeletionTimestamp != nil)
	})
	require.Len(w.t, w.handles(), 2, "it goes with its group")
	w.drop(newGroup("g"))
	gone[*groupv1.VolumeGroupSnapshot](w, "default", "g")
	require.Empty(w.t, list[*groupv1.VolumeGroupSnapshotContent](w))
	require.Empty(w.t, list[*snapshotv1.VolumeSnapshot](w))
	require.Empty(w.t, list[*snapshotv1.VolumeSnapshotContent](w))
	require.Empty(w.t, w.handles())
}

// testConflicts has another write each object before every second write of the controller to it.
func testConflicts(w *world) {
	contended := &contended{Store: w.store, updates: map[store.Key]int{}}
	w.start(contended)
	w.bound("c", "")
	create(w, newClass(snapshotv1.VolumeSnapshotContentDelete))
	create(w, newSnapshot("s", "c"))
	snap, _ := w.ready("s")
	require.Equal(w.t, "was-here", snap.Labels["another"], "what another wrote stays")
	w.drop(snap)
	gone[*snapshotv1.VolumeSnapshot](w, "default", "s")
	require.Empty(w.t, w.handles())
	require.Greater(w.t, contended.conflicts.Load(), int32(3))
}

// contended is a store in which another writes each object before every second update of it, the first one included.
type contended struct {
	store.Store

	mu        sync.Mutex
	updates   map[store.Key]int
	conflicts atomic.Int32
}

func (s *contended) Kinds() *store.KindTable { return store.KindsOf(s.Store) }

func (s *contended) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	key, err := s.Kinds().KeyOf(obj)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.updates[key]++
	n := s.updates[key]
	s.mu.Unlock()
	if n%2 == 1 {
		if err := s.interfere(ctx, key, n); err != nil {
			return nil, err
		}
	}
	updated, err := s.Store.Update(ctx, obj)
	if errors.Is(err, store.ErrConflict) {
		s.conflicts.Add(1)
	}
	return updated, err
}

func (s *contended) interfere(ctx context.Context, key store.Key, n int) error {
	now, err := s.Get(ctx, key)
	if err != nil {
		return err
	}
	changed := now.DeepCopyObject().(store.Object)
	labels := changed.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels["another"], labels["times"] = "was-here", strconv.Itoa(n)
	changed.SetLabels(labels)
	_, err = s.Store.Update(ctx, changed)
	return err
}

// testTwo runs two controllers, of which each believes that it leads.
func testTwo(w *world) {
	w.start(w.store)
	w.start(w.store)
	w.bound("c", "db")
	create(w, newClass(snapshotv1.VolumeSnapshotContentDelete))
	create(w, newGroupClass())
	create(w, newSnapshot("s", "c"))
	create(w, newGroup("g"))
	snap, _ := w.ready("s")
	w.until("the group is ready", func() bool {
		group, _ := find[*groupv1.VolumeGroupSnapshot](w, "default", "g")
		return group.Status != nil && group.Status.ReadyToUse != nil && *group.Status.ReadyToUse
	})
	require.Len(w.t, w.handles(), 2)
	w.drop(snap)
	w.drop(newGroup("g"))
	gone[*snapshotv1.VolumeSnapshot](w, "default", "s")
	gone[*groupv1.VolumeGroupSnapshot](w, "default", "g")
	w.until("nothing is left", func() bool { return len(w.ends()) == 2 })
	require.Empty(w.t, w.handles())
}
