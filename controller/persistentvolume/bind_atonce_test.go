package persistentvolume

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/store"
)

// written returns every version of the objects of a kind that was ever written, in order.
func written[T store.Object](w *world, kind schema.GroupVersionKind) []T {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	events, err := w.store.Watch(ctx, kind, "", "0")
	require.NoError(w.t, err)
	var all []T
	var mu sync.Mutex
	go func() {
		for event := range events {
			mu.Lock()
			if obj, ok := event.Object.(T); ok {
				all = append(all, obj)
			}
			mu.Unlock()
		}
	}()
	idle()
	mu.Lock()
	defer mu.Unlock()
	return all
}

// If the store has transactions, no reader sees half of a bind, for an existing or a new volume.
func TestABindIsSeenAsAWholeWhereTheStoreHasTransactions(t *testing.T) {
	inWorld(t, objectList{
		newVolume("a"), newClaim("finds"), newClass("fast"), newClaim("gets", ofClass("fast")), newVolume("b", refTo("names", "")), newClaim("names", names("b")),
	}, func(t *testing.T, w *world) {
		w.settle()
		w.requireBound("finds", "a")
		w.requireBound("gets", "pvc-uid-gets")
		w.requireBound("names", "b")
		for _, pv := range written[*v1.PersistentVolume](w, store.PersistentVolumes) {
			given := pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID != ""
			assert.Equal(t, given, pv.Status.Phase == v1.VolumeBound, "volume %q: %v, %s", pv.Name, pv.Spec.ClaimRef, pv.Status.Phase)
		}
		for _, claim := range written[*v1.PersistentVolumeClaim](w, store.PersistentVolumeClaims) {
			_, completed := claim.Annotations[objects.AnnBindCompleted]
			assert.Equal(t, completed, claim.Status.Phase == v1.ClaimBound, "claim %q: %v, %s", claim.Name, completed, claim.Status.Phase)
		}
	})
}

// meddling changes a claim just before the first transaction of several writes.
type meddling struct {
	store.Transactor

	once   sync.Once
	meddle func()
	after  func(err error)
}

func (s *meddling) Commit(ctx context.Context, t store.Transaction) (objects []runtime.Object, err error) {
	if len(t.Writes) < 2 {
		return s.Transactor.Commit(ctx, t)
	}
	first := false
	s.once.Do(func() { first = true; s.meddle() })
	objects, err = s.Transactor.Commit(ctx, t)
	if first {
		s.after(err)
	}
	return objects, err
}

// If the claim changes during a bind, nothing is written: the volume stays free for another claim.
func TestNothingIsWrittenOfABindWhoseClaimHasChanged(t *testing.T) {
	tests := map[string]struct {
		objects objectList
		meddle  func(w *world)
		wants   error
		volume  string // that the claim gets in the end; empty means that it is gone, and the volume free
	}{
		"changed": {objectList{newVolume("a"), newClaim("c")}, func(w *world) {
			claim := w.claim("c")
			claim.Labels = map[string]string{"meddled": "with"}
			_, err := store.Update(w.t.Context(), w.store, claim)
			require.NoError(w.t, err)
		}, store.ErrConflict, "a"},
		"gone": {objectList{newVolume("a"), newClaim("c")}, func(w *world) {
			require.NoError(w.t, store.Delete(w.t.Context(), w.store, w.claim("c")))
		}, store.ErrNotFound, ""},
		"changed while its volume was made": {objectList{newClass("fast"), newClaim("c", ofClass("fast"))}, func(w *world) {
			claim := w.claim("c")
			claim.Labels = map[string]string{"meddled": "with"}
			_, err := store.Update(w.t.Context(), w.store, claim)
			require.NoError(w.t, err)
		}, store.ErrConflict, "pvc-uid-c"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inWorld(t, tt.objects, func(t *testing.T, w *world) {
				transactor, ok := w.store.(store.Transactor)
				require.True(t, ok)
				met := false
				w.start(&meddling{Transactor: transactor, meddle: func() { tt.meddle(w) }, after: func(err error) {
					met = true
					assert.ErrorIs(t, err, tt.wants)
					volumes, _, err := store.ListOf[*v1.PersistentVolume](t.Context(), w.store, "")
					assert.NoError(t, err)
					for _, pv := range volumes {
						assert.Nil(t, pv.Spec.ClaimRef)
					}
				}}, Options{Workers: 1})
				idle()
				idle()
				require.True(t, met)
				if tt.volume != "" {
					w.requireBound("c", tt.volume)
					return
				}
				pv := w.volume("a")
				assert.Nil(t, pv.Spec.ClaimRef)
				assert.Equal(t, v1.VolumeAvailable, pv.Status.Phase)
				w.create(newClaim("next"))
				idle()
				w.requireBound("next", "a")
			})
		})
	}
}
