package bind

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/store"
)

// counting counts updates. It has no transactions.
type counting struct {
	store.Store

	updates int
}

func (s *counting) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	s.updates++
	return s.Store.Update(ctx, obj)
}

// world is a Binder with a claim and a volume that are not bound.
type world struct {
	*Binder

	store     store.Store
	claim     *v1.PersistentVolumeClaim
	pv        *v1.PersistentVolume
	refreshed []string
}

func newWorld(t *testing.T, s store.Store) *world {
	t.Helper()
	w := &world{store: s}
	var err error
	w.claim, err = store.Create(t.Context(), s, &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "uid-c"}})
	require.NoError(t, err)
	w.pv, err = store.Create(t.Context(), s, &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}})
	require.NoError(t, err)
	w.Binder = New(s, followed[*v1.PersistentVolumeClaim](t, s), followed[*v1.PersistentVolume](t, s), func(name string) {
		w.refreshed = append(w.refreshed, name)
	})
	return w
}

// followed returns a mirror that follows the store until the test ends.
func followed[T store.Object](t *testing.T, s store.Store) *store.Mirror[T] {
	t.Helper()
	m := store.NewMirror[T](s, store.MirrorOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); m.Follow(ctx, func(T) {}) }()
	t.Cleanup(func() { cancel(); <-ended })
	require.True(t, m.WaitSynced(ctx))
	return m
}

// read reads claim and volume again.
func (w *world) read(t *testing.T) (*v1.PersistentVolumeClaim, *v1.PersistentVolume) {
	t.Helper()
	claim, err := store.Get[*v1.PersistentVolumeClaim](t.Context(), w.store, "default", "c")
	require.NoError(t, err)
	pv, err := store.Get[*v1.PersistentVolume](t.Context(), w.store, "", "v")
	require.NoError(t, err)
	return claim, pv
}

// A bind that is whole is not written again, with transactions and without.
func TestAWholeBindIsNotWrittenAgain(t *testing.T) {
	memory := store.NewMemory(store.MemoryOptions{})
	for name, s := range map[string]store.Store{"transaction": memory, "four writes": &counting{Store: store.NewMemory(store.MemoryOptions{})}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, s)
			require.NoError(t, w.Bind(t.Context(), w.claim, w.pv))
			claim, pv := w.read(t)
			assert.True(t, IsWhole(claim, pv))
			assert.Contains(t, w.refreshed, "v")
			known, there := w.volumes.Get(objects.Named("v"))
			require.True(t, there, "it is known at once")
			assert.Equal(t, pv.ResourceVersion, known.ResourceVersion)

			require.NoError(t, w.Bind(t.Context(), claim, pv))
			again, pvAgain := w.read(t)
			assert.Equal(t, claim.ResourceVersion, again.ResourceVersion)
			assert.Equal(t, pv.ResourceVersion, pvAgain.ResourceVersion)
			if c, counts := s.(*counting); counts {
				assert.Equal(t, 4, c.updates)
			}
		})
	}
}

// A reference that a controller chose goes as a whole, one that a user made loses its UID alone.
func TestUnbindLeavesWhatAUserWrote(t *testing.T) {
	for name, reserved := range map[string]bool{"chosen": false, "by a user": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, store.NewMemory(store.MemoryOptions{}))
			if reserved {
				w.pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: "c"}
				var err error
				w.pv, err = w.UpdateVolume(t.Context(), w.pv)
				require.NoError(t, err)
			}
			require.NoError(t, w.Bind(t.Context(), w.claim, w.pv))
			_, pv := w.read(t)
			require.NoError(t, w.Unbind(t.Context(), pv))
			_, pv = w.read(t)
			assert.Equal(t, v1.VolumeAvailable, pv.Status.Phase)
			if !reserved {
				assert.Nil(t, pv.Spec.ClaimRef)
				return
			}
			require.NotNil(t, pv.Spec.ClaimRef)
			assert.Equal(t, "c", pv.Spec.ClaimRef.Name)
			assert.Empty(t, pv.Spec.ClaimRef.UID)
		})
	}
}

// No volume is bound to a claim that has changed since it was read, and none of the two is written then.
func TestABindToAClaimThatHasChangedDoesNothing(t *testing.T) {
	for name, s := range map[string]store.Store{
		"transaction": store.NewMemory(store.MemoryOptions{}), "four writes": &counting{Store: store.NewMemory(store.MemoryOptions{})},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, s)
			changed := w.claim.DeepCopy()
			changed.Labels = map[string]string{"changed": "yes"}
			_, err := store.Update(t.Context(), s, changed)
			require.NoError(t, err)
			require.ErrorIs(t, w.Bind(t.Context(), w.claim, w.pv), store.ErrConflict)
			_, pv := w.read(t)
			assert.Equal(t, w.pv.ResourceVersion, pv.ResourceVersion)
		})
	}
}

// Finalizers go from a volume that is gone, too, without an error.
func TestReleaseOfAVolumeThatIsGone(t *testing.T) {
	w := newWorld(t, store.NewMemory(store.MemoryOptions{}))
	pv, err := w.UpdateVolume(t.Context(), w.pv)
	require.NoError(t, err)
	require.Contains(t, pv.Finalizers, objects.FinalizerVolumeProtection)
	require.NoError(t, w.Release(t.Context(), pv))
	_, now := w.read(t)
	assert.Empty(t, now.Finalizers)
	require.NoError(t, store.Delete(t.Context(), w.store, now))
	require.NoError(t, w.Release(t.Context(), pv))
}
