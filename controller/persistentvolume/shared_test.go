package persistentvolume

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
)

// sameStorage makes a volume name the storage of another one.
func sameStorage(of string) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = of }
}

// Two volumes name the same storage. It is neither deleted nor emptied while the other volume may be wanted.
func TestStorageOfAnotherVolumeIsNotReclaimed(t *testing.T) {
	for _, how := range []v1.PersistentVolumeReclaimPolicy{v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRecycle} {
		for name, other := range map[string]objectList{
			"bound":    {newClaim("d", completed, names("b")), newVolume("b", sameStorage("a"), refTo("d", "uid-d"), policy(how))},
			"free":     {newVolume("b", sameStorage("a"), policy(how))},
			"retained": {newVolume("b", sameStorage("a"), refTo("d", "uid-d"), policy(v1.PersistentVolumeReclaimRetain))},
			"reserved": {newVolume("b", sameStorage("a"), refTo("d", ""), policy(how))},
		} {
			t.Run(name+", "+string(how), func(t *testing.T) {
				inWorld(t, append(other, newVolume("a", refTo("c", "uid-c"), policy(how))), func(t *testing.T, w *world) {
					require.NoError(t, w.plugin.Backend().Create("a", 1<<30))
					_, stop := w.start(w.store, Options{})
					sleepUntilIdle()
					assert.Zero(t, w.calls(fake.MethodDelete)+w.calls(fake.MethodRecycle))
					assert.Equal(t, v1.VolumeReleased, w.volume("a").Status.Phase)
					assert.Contains(t, w.volume("a").Status.Message, `volume "b" has the same storage`)

					if name == "bound" {
						stop() // Otherwise the claim may get its volume again, before that is deleted.
					}
					pv := w.volume("b")
					pv.Finalizers, pv.Spec.ClaimRef = nil, nil
					_, err := w.store.Update(t.Context(), pv)
					require.NoError(t, err)
					w.delete(newVolume("b"))
					if name == "bound" {
						w.start(w.store, Options{})
					}
					sleepUntilIdle()
					assert.Equal(t, 1, w.calls(fake.MethodDelete)+w.calls(fake.MethodRecycle), "it is the only one now")
				})
			})
		}
	}
}

// Volumes of one storage whose claims are all gone are deleted, and the storage with them.
func TestStorageOfSeveralVolumesGoesWithTheLast(t *testing.T) {
	objects := objectList{
		newVolume("a", refTo("c", "uid-c"), policy(v1.PersistentVolumeReclaimDelete)),
		newVolume("b", sameStorage("a"), refTo("d", "uid-d"), policy(v1.PersistentVolumeReclaimDelete)), newClaim("d", completed, names("b")),
	}
	inWorld(t, objects, func(t *testing.T, w *world) {
		require.NoError(t, w.plugin.Backend().Create("a", 1<<30))
		w.settle()
		require.Equal(t, []string{"a"}, w.plugin.Backend().Handles())
		w.delete(newClaim("d"))
		sleepUntilIdle()
		assert.Empty(t, w.plugin.Backend().Handles())
		w.requireNoVolume("a")
		w.requireNoVolume("b")
	})
}

// Two claims of a user's store have one UID, and so would have one volume. The second one, which the volume does not fit, gets
// none, and the first one keeps its storage.
func TestAClaimOfAnotherWithItsUIDTakesNoStorage(t *testing.T) {
	inWorld(t, provisioned, func(t *testing.T, w *world) {
		w.settle()
		w.requireBound("c", made)
		w.create(newClaim("d", func(claim *v1.PersistentVolumeClaim) {
			claim.UID = "uid-c"
			claim.Spec.StorageClassName = w.claim("c").Spec.StorageClassName
			claim.Spec.Resources.Requests = size("9Gi")
		}))
		sleepUntilIdle()
		assert.NotEmpty(t, w.plugin.Backend().Handles())
		assert.Zero(t, w.calls(fake.MethodDelete))
		w.requireBound("c", made)
		assert.NotEqual(t, v1.ClaimBound, w.claim("d").Status.Phase)
	})
}

// A plugin may return the volume of another claim, which does not fit. A volume that has an object is not discarded.
func TestStorageWithAnObjectIsNotDiscarded(t *testing.T) {
	inWorld(t, provisioned, func(t *testing.T, w *world) {
		c := w.settle()
		err := c.storage.Discard(t.Context(), w.claim("c"), w.volume(made), assert.AnError)
		require.ErrorIs(t, err, assert.AnError)
		require.ErrorIs(t, err, volume.ErrInUse)
		require.ErrorIs(t, err, volume.ErrUncertain)
		assert.Zero(t, w.calls(fake.MethodDelete))
	})
}
