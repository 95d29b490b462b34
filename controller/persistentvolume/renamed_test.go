package persistentvolume

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
)

// A store of one's own may let the volume name of a bound claim be changed. The volume that the claim had is not deleted while
// pods use the claim, nor while the claim does not have the other volume.
func TestTheVolumeOfAClaimThatNamesAnotherIsKept(t *testing.T) {
	for name, test := range map[string]struct {
		more objectList
		pod  bool
	}{
		"which does not exist":                   {nil, false},
		"which is another claim's":               {objectList{newVolume("b", refTo("d", "uid-d"))}, false},
		"which it gets, and a pod has the first": {objectList{newVolume("b")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, append(test.more, provisioned...), func(t *testing.T, w *world) {
				_, stop := w.start(w.store, Options{})
				idle()
				w.requireBound("c", made)
				if test.pod {
					w.create(newPod("p", "n", "c"))
					idle()
				}
				claim := w.claim("c")
				claim.Spec.VolumeName = "b"
				_, err := store.Update(t.Context(), w.store, claim)
				require.NoError(t, err)
				sleepUntilIdle()
				stop()
				w.start(w.store, Options{}) // Each volume is looked at again.
				sleepUntilIdle()
				assert.Zero(t, w.calls(fake.MethodDelete))
				assert.NotEmpty(t, w.plugin.Backend().Handles())
			})
		})
	}
}

// A volume that was made by hand is not given to another claim either.
func TestTheVolumeOfALostClaimIsGivenToNoOther(t *testing.T) {
	inWorld(t, objectList{newClaim("c"), newVolume("a")}, func(t *testing.T, w *world) {
		_, stop := w.start(w.store, Options{})
		idle()
		w.requireBound("c", "a")
		claim := w.claim("c")
		claim.Spec.VolumeName = "b"
		_, err := store.Update(t.Context(), w.store, claim)
		require.NoError(t, err)
		idle()
		stop()
		w.create(newClaim("d"))
		w.start(w.store, Options{})
		sleepUntilIdle()
		assert.Equal(t, v1.ClaimLost, w.claim("c").Status.Phase)
		assert.Equal(t, v1.ClaimPending, w.claim("d").Status.Phase)
		assert.Equal(t, claim.UID, w.volume("a").Spec.ClaimRef.UID)
		w.delete(newClaim("c"))
		sleepUntilIdle()
		assert.Equal(t, v1.VolumeReleased, w.volume("a").Status.Phase)
	})
}
