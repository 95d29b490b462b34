package persistentvolume

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/store"
)

// A class counts as soon as it is in the store, also if its event comes after that of a claim that names it.
func TestAClassThatNoEventReportedCounts(t *testing.T) {
	t.Run("a volume is made", func(t *testing.T) {
		inWorld(t, nil, func(t *testing.T, w *world) {
			w.start(&gap{Store: w.store, kind: store.StorageClasses}, Options{})
			idle()
			w.create(newClass("x"))
			w.create(newClaim("c", ofClass("x")))
			idle()
			w.requireBound("c", made)
			assert.NotContains(t, w.reasons(), ReasonProvisioningFailed)
		})
	})
	t.Run("it waits for its consumer", func(t *testing.T) {
		free := newVolume("a", func(pv *v1.PersistentVolume) { pv.Spec.StorageClassName = "x" })
		inWorld(t, objectList{free}, func(t *testing.T, w *world) {
			w.start(&gap{Store: w.store, kind: store.StorageClasses}, Options{})
			idle()
			w.create(newClass("x", late))
			w.create(newClaim("c", ofClass("x")))
			idle()
			assert.Nil(t, w.volume("a").Spec.ClaimRef)
			assert.Equal(t, []string{ReasonWaitForFirstConsumer}, w.reasons())
		})
	})
	t.Run("a deleted claim goes", func(t *testing.T) {
		inWorld(t, nil, func(t *testing.T, w *world) {
			w.start(&gap{Store: w.store, kind: store.StorageClasses}, Options{})
			idle()
			w.create(newClass("x"))
			claim := newClaim("c", ofClass("x"))
			claim.Finalizers = []string{objects.FinalizerProvisioning}
			w.create(claim)
			require.NoError(t, store.Delete(t.Context(), w.store, w.claim("c")))
			sleepUntilIdle()
			assert.False(t, w.has(claim))
			assert.Empty(t, w.plugin.Backend().Handles())
		})
	})
}
