package persistentvolume

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
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
					w.settle()
					sleepUntilIdle()
					assert.Zero(t, w.calls(fake.MethodDelete)+w.calls(fake.MethodRecycle))
					assert.Equal(t, v1.VolumeReleased, w.volume("a").Status.Phase)
					assert.Contains(t, w.volume("a").Status.Message, `volume "b" has the same storage`)

					pv := w.volume("b")
					pv.Finalizers, pv.Spec.ClaimRef = nil, nil
					_, err := w.store.Update(t.Context(), pv)
					require.NoError(t, err)
					w.delete(newVolume("b"))
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
