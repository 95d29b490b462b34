package persistentvolume

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/storage"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// snapshotsBy answers as controller/snapshot does.
type snapshotsBy func(name string) (volume.Snapshot, string, error)

func (f snapshotsBy) Snapshot(_ context.Context, claim *v1.PersistentVolumeClaim, name string) (volume.Snapshot, string, error) {
	return f(claim.Namespace + "/" + name)
}

func restoreOf(name string) func(*v1.PersistentVolumeClaim) {
	return func(claim *v1.PersistentVolumeClaim) {
		claim.Spec.DataSource = &v1.TypedLocalObjectReference{APIGroup: ptr(storage.SnapshotGroup), Kind: storage.SnapshotKind, Name: name}
	}
}

func TestAVolumeIsRestoredFromASnapshot(t *testing.T) {
	inWorld(t, objectList{newClaim("old", ofClass("x")), newClass("x")}, func(t *testing.T, w *world) {
		w.settle()
		taken, err := w.plugin.CreateSnapshot(t.Context(), volume.SnapshotOptions{
			Name: "s", Source: volume.NewSpecFromPersistentVolume(w.volume("pvc-uid-old"), false),
		})
		require.NoError(t, err)
		type answer struct {
			owner string
			err   error
		}
		var said atomic.Pointer[answer]
		said.Store(&answer{fake.DefaultPluginName, store.ErrNotFound})
		w.create(newClaim("c", ofClass("x"), restoreOf("s")))
		c, _ := w.start(w.store, Options{Snapshots: snapshotsBy(func(name string) (volume.Snapshot, string, error) {
			assert.Equal(t, "default/s", name)
			now := said.Load()
			return taken, now.owner, now.err
		})})
		sleepUntilIdle()
		why, waits := c.Why(claimC)
		require.True(t, waits)
		require.ErrorIs(t, why.Err, storage.ErrSourceGone)

		said.Store(&answer{fake.DefaultPluginName, volume.ErrTransient})
		sleepUntilIdle()
		assert.Equal(t, 1, w.calls(fake.MethodProvision), "nothing is made of a snapshot that is not ready")

		said.Store(&answer{"example.com/other", nil})
		sleepUntilIdle()
		why, _ = c.Why(claimC)
		require.ErrorIs(t, why.Err, volume.ErrInfeasible, "another plugin cannot restore it")

		said.Store(&answer{fake.DefaultPluginName, nil})
		sleepUntilIdle()
		w.requireBound("c", made)
	})
}

// watchedSnapshots says when they change.
type watchedSnapshots struct {
	snapshotsBy

	changed chan types.NamespacedName
}

func (s watchedSnapshots) WatchSnapshots(ctx context.Context, changed func(types.NamespacedName)) {
	for {
		select {
		case name := <-s.changed:
			changed(name)
		case <-ctx.Done():
			return
		}
	}
}

// A claim that waits for a snapshot is woken by it, and not by the back-off. Claims that wait for others are not.
func TestAClaimIsWokenByItsSnapshot(t *testing.T) {
	objects := objectList{newClaim("old", ofClass("x")), newClass("x"), newClaim("c", ofClass("x"), restoreOf("s"))}
	inWorld(t, objects, func(t *testing.T, w *world) {
		var ready, asked atomic.Int32
		said := watchedSnapshots{changed: make(chan types.NamespacedName)}
		said.snapshotsBy = func(string) (volume.Snapshot, string, error) {
			asked.Add(1)
			if ready.Load() == 0 {
				return volume.Snapshot{}, "", volume.ErrTransient
			}
			taken, err := w.plugin.CreateSnapshot(t.Context(), volume.SnapshotOptions{
				Name: "s", Source: volume.NewSpecFromPersistentVolume(w.volume("pvc-uid-old"), false),
			})
			return taken, fake.DefaultPluginName, err
		}
		w.start(w.store, Options{Snapshots: said, InitialBackoff: time.Hour, MaxBackoff: time.Hour, Jitter: -1})
		synctest.Wait()
		require.EqualValues(t, 1, asked.Load())
		said.changed <- types.NamespacedName{Namespace: "default", Name: "another"}
		synctest.Wait()
		require.EqualValues(t, 1, asked.Load())
		said.changed <- types.NamespacedName{Namespace: "default", Name: "s"}
		synctest.Wait()
		require.EqualValues(t, 2, asked.Load())
		ready.Store(1)
		said.changed <- types.NamespacedName{Namespace: "default", Name: "s"}
		synctest.Wait()
		w.requireBound("c", made)
		require.EqualValues(t, 4, asked.Load(), "before and after it is on record that a volume is begun")
		said.changed <- types.NamespacedName{Namespace: "default", Name: "s"}
		synctest.Wait()
		require.EqualValues(t, 4, asked.Load(), "it has its volume")
	})
}

func TestWithoutSnapshotsNothingIsRestored(t *testing.T) {
	inWorld(t, objectList{newClaim("c", ofClass("x"), restoreOf("s")), newClass("x")}, func(t *testing.T, w *world) {
		c := w.settle()
		why, waits := c.Why(claimC)
		require.True(t, waits)
		require.ErrorIs(t, why.Err, volume.ErrInfeasible)
		require.ErrorContains(t, why.Err, "Options.Snapshots")
		assert.Zero(t, w.calls(fake.MethodProvision))
	})
}

// A snapshot that goes before it is on record that a volume of it is begun is not restored: nothing has kept it.
func TestASnapshotThatGoesBeforeItsRestoreIsBegunIsNotRestored(t *testing.T) {
	inWorld(t, objectList{newClaim("c", ofClass("x"), restoreOf("s")), newClass("x")}, func(t *testing.T, w *world) {
		var gone atomic.Bool
		snapshots := snapshotsBy(func(string) (volume.Snapshot, string, error) {
			if gone.Load() {
				return volume.Snapshot{}, "", store.ErrNotFound
			}
			return volume.Snapshot{Handle: "s", ReadyToUse: true}, fake.DefaultPluginName, nil
		})
		c, _ := w.start(&lateIntent{Store: w.store, before: func() { gone.Store(true) }}, Options{Snapshots: snapshots})
		sleepUntilIdle()
		why, waits := c.Why(claimC)
		require.True(t, waits)
		require.ErrorIs(t, why.Err, storage.ErrSourceGone)
		assert.NotContains(t, w.claim("c").Finalizers, objects.FinalizerProvisioning)
		assert.Zero(t, w.calls(fake.MethodProvision))
	})
}
