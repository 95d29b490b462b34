package persistentvolume

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/storage"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

var claimC = types.NamespacedName{Namespace: "default", Name: "c"}

// copyOf makes a claim one for a copy of what another has.
func copyOf(name string) func(*v1.PersistentVolumeClaim) {
	return func(claim *v1.PersistentVolumeClaim) {
		claim.Spec.DataSource = &v1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: name}
	}
}

func TestACopyIsMadeOfTheVolumeOfABoundClaim(t *testing.T) {
	inWorld(t, objectList{newClaim("c", ofClass("x"), copyOf("old")), newClass("x")}, func(t *testing.T, w *world) {
		c := w.settle()
		why, waits := c.Why(claimC)
		require.True(t, waits)
		require.ErrorIs(t, why.Err, storage.ErrSourceGone)
		assert.Empty(t, w.plugin.Backend().Handles(), "nothing is made before there is something to copy")

		w.create(newClaim("old", ofClass("x")))
		sleepUntilIdle()
		w.requireBound("old", "pvc-uid-old")
		w.requireBound("c", made)
		w.requireBound("c", made)
		assert.Equal(t, []string{"pvc-uid-c", "pvc-uid-old"}, w.plugin.Backend().Handles())
	})
}

func TestAClaimForACopyGetsNoVolumeThatIsThere(t *testing.T) {
	fits := newVolume("fits", func(pv *v1.PersistentVolume) { pv.Spec.StorageClassName = "x" })
	inWorld(t, objectList{fits, newClaim("c", ofClass("x"), copyOf("old")), newClass("x")}, func(t *testing.T, w *world) {
		w.settle()
		assert.Empty(t, w.claim("c").Spec.VolumeName)
		assert.Nil(t, w.volume("fits").Spec.ClaimRef)
	})
}

func TestWhatCannotBeCopiedIsRefused(t *testing.T) {
	other := func(claim *v1.PersistentVolumeClaim) {
		claim.Spec.DataSourceRef = &v1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "old", Namespace: ptr("other")}
	}
	two := func(claim *v1.PersistentVolumeClaim) {
		claim.Spec.DataSourceRef = &v1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "another"}
	}
	for name, row := range map[string]struct {
		change []func(*v1.PersistentVolumeClaim)
		want   error
	}{
		"of another namespace": {[]func(*v1.PersistentVolumeClaim){other}, volume.ErrInfeasible},
		"itself":               {[]func(*v1.PersistentVolumeClaim){copyOf("c")}, volume.ErrInvalid},
		"two at once":          {[]func(*v1.PersistentVolumeClaim){copyOf("old"), two}, volume.ErrInvalid},
		"no claim": {[]func(*v1.PersistentVolumeClaim){func(claim *v1.PersistentVolumeClaim) {
			claim.Spec.DataSource = &v1.TypedLocalObjectReference{APIGroup: ptr("example.com"), Kind: "Snapshot", Name: "old"}
		}}, volume.ErrInfeasible},
	} {
		t.Run(name, func(t *testing.T) {
			claim := newClaim("c", append(row.change, ofClass("x"))...)
			inWorld(t, objectList{newClaim("old", ofClass("x")), claim, newClass("x")}, func(t *testing.T, w *world) {
				c := w.settle()
				why, waits := c.Why(claimC)
				require.True(t, waits)
				require.ErrorIs(t, why.Err, row.want)
				assert.Equal(t, []string{"pvc-uid-old"}, w.plugin.Backend().Handles())
			})
		})
	}
}

func TestPluginThatCannotCopyIsNotAskedTo(t *testing.T) {
	inWorld(t, objectList{newClaim("old", ofClass("x")), newClass("x")}, func(t *testing.T, w *world) {
		w.plugin = fake.NewPlugin(fake.PluginOptions{Mounter: noMounts{}, Without: volume.CapClone})
		w.plugins = volume.NewVolumePluginMgr(w.plugins.Host())
		require.NoError(t, w.plugins.InitPlugins(t.Context(), w.plugin))
		w.create(newClaim("c", ofClass("x"), copyOf("old")))
		c := w.settle()
		sleepUntilIdle()
		why, waits := c.Why(claimC)
		require.True(t, waits)
		require.ErrorIs(t, why.Err, volume.ErrInfeasible)
		require.ErrorIs(t, why.Err, volume.ErrUnsupported)
		assert.Equal(t, 1, w.calls(fake.MethodProvision))
	})
}

// A claim that waits for the claim to copy is woken by it, and not by the back-off, which is an hour.
func TestACopyIsWokenByItsSource(t *testing.T) {
	inWorld(t, objectList{newClaim("old", ofClass("y")), newClaim("c", ofClass("x"), copyOf("old")), newClass("x")}, func(t *testing.T, w *world) {
		c, _ := w.start(w.store, Options{InitialBackoff: time.Hour, MaxBackoff: time.Hour, Jitter: -1})
		idle()
		why, waits := c.Why(claimC)
		require.True(t, waits)
		require.ErrorIs(t, why.Err, volume.ErrTransient)
		w.create(newClass("y"))
		idle()
		w.requireBound("old", "pvc-uid-old")
		w.requireBound("c", made)
	})
}

// A claim is told at once that the claim to copy is being deleted.
func TestACopyIsRefusedWhenItsSourceIsDeleted(t *testing.T) {
	keep := func(claim *v1.PersistentVolumeClaim) { claim.Finalizers = []string{"example.com/keep"} }
	inWorld(t, objectList{newClaim("old", ofClass("y"), keep), newClaim("c", ofClass("x"), copyOf("old")), newClass("x")}, func(t *testing.T, w *world) {
		c, _ := w.start(w.store, Options{InitialBackoff: time.Hour, MaxBackoff: time.Hour, Jitter: -1})
		idle()
		w.delete(newClaim("old"))
		idle()
		why, waits := c.Why(claimC)
		require.True(t, waits)
		require.ErrorIs(t, why.Err, storage.ErrSourceGone)
	})
}

// TestADyingClaimForACopyOfWhatIsGoneGoes: nothing can tell any more what was to be copied, and the claim must not wait for it.
func TestADyingClaimForACopyOfWhatIsGoneGoes(t *testing.T) {
	inWorld(t, objectList{newClaim("old", ofClass("x")), newClass("x")}, func(t *testing.T, w *world) {
		w.settle()
		w.plugin.Inject(fake.MethodProvision, fake.FailN(1, volume.Uncertain(errCrashed)))
		claim := newClaim("c", ofClass("x"), copyOf("old"))
		w.create(claim)
		idle()
		require.Contains(t, w.claim("c").Finalizers, objects.FinalizerProvisioning)
		w.delete(newClaim("old"))
		w.delete(claim)
		sleepUntilIdle()
		_, err := store.Get[*v1.PersistentVolumeClaim](t.Context(), w.store, "default", "c")
		require.ErrorIs(t, err, store.ErrNotFound)
		assert.Empty(t, w.plugin.Backend().Handles())
	})
}

// TestAClaimThatMayBeCopiedStays: only a call with the same source finds a copy that was begun, or says that there is none.
func TestAClaimThatMayBeCopiedStays(t *testing.T) {
	inWorld(t, objectList{newClaim("old", ofClass("x")), newClass("x")}, func(t *testing.T, w *world) {
		w.settle()
		w.plugin.Inject(fake.MethodProvision, fake.FailAfter(volume.Uncertain(errCrashed)))
		w.create(newClaim("c", ofClass("x"), copyOf("old")))
		idle()
		require.Contains(t, w.claim("c").Finalizers, objects.FinalizerProvisioning)
		w.delete(newClaim("old"))
		require.Equal(t, 2, w.calls(fake.MethodProvision))
		assert.NotNil(t, w.claim("old").DeletionTimestamp)
		assert.NotNil(t, w.volume("pvc-uid-old"))

		sleepUntilIdle()
		w.requireBound("c", made)
		_, err := store.Get[*v1.PersistentVolumeClaim](t.Context(), w.store, "default", "old")
		require.ErrorIs(t, err, store.ErrNotFound)
		assert.Equal(t, []string{"pvc-uid-c"}, w.plugin.Backend().Handles())
	})
}

func TestAClaimThatIsBeingDeletedIsNotCopied(t *testing.T) {
	keep := func(claim *v1.PersistentVolumeClaim) { claim.Finalizers = []string{"example.com/keep"} }
	inWorld(t, objectList{newClaim("old", ofClass("x"), keep), newClass("x")}, func(t *testing.T, w *world) {
		c := w.settle()
		w.delete(newClaim("old"))
		w.create(newClaim("c", ofClass("x"), copyOf("old")))
		sleepUntilIdle()
		why, waits := c.Why(claimC)
		require.True(t, waits)
		require.ErrorIs(t, why.Err, storage.ErrSourceGone)
		assert.NotContains(t, w.claim("c").Finalizers, objects.FinalizerProvisioning)
		assert.Equal(t, []string{"pvc-uid-old"}, w.plugin.Backend().Handles())
	})
}

// lateIntent is a store in which something happens right before it is written that a volume is begun for a claim.
type lateIntent struct {
	store.Store

	before func()
}

func (s *lateIntent) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	claim, ok := obj.(*v1.PersistentVolumeClaim)
	if ok && claim.Name == "c" && slices.Contains(claim.Finalizers, objects.FinalizerProvisioning) && s.before != nil {
		s.before()
		s.before = nil
	}
	return s.Store.Update(ctx, obj)
}

// TestAClaimThatGoesBeforeItsCopyIsBegunIsNotCopied: nothing has kept it.
func TestAClaimThatGoesBeforeItsCopyIsBegunIsNotCopied(t *testing.T) {
	inWorld(t, objectList{newClaim("old", ofClass("x")), newClass("x")}, func(t *testing.T, w *world) {
		_, stop := w.start(w.store, Options{})
		idle()
		stop()
		w.create(newClaim("c", ofClass("x"), copyOf("old")))
		c, _ := w.start(&lateIntent{Store: w.store, before: func() {
			old := w.claim("old")
			old.Finalizers = nil
			_, err := w.store.Update(t.Context(), old)
			require.NoError(t, err)
			key, err := store.KeyOf(old)
			require.NoError(t, err)
			require.NoError(t, w.store.Delete(t.Context(), key, store.Preconditions{}))
		}}, Options{})
		sleepUntilIdle()
		why, waits := c.Why(claimC)
		require.True(t, waits)
		require.ErrorIs(t, why.Err, storage.ErrSourceGone)
		assert.NotContains(t, w.claim("c").Finalizers, objects.FinalizerProvisioning)
		assert.Equal(t, 1, w.calls(fake.MethodProvision))
	})
}
