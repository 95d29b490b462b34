package persistentvolume

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

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
