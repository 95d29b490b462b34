package ephemeral

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
)

type world struct {
	*Controller

	store  store.Store
	events *fake.Recorder
}

// newWorld returns a controller on a store that has objects, and that has seen them.
func newWorld(t *testing.T, objects ...store.Object) *world {
	t.Helper()
	w := &world{store: store.NewMemory(store.MemoryOptions{}), events: &fake.Recorder{}}
	for _, object := range objects {
		_, err := w.store.Create(t.Context(), object)
		require.NoError(t, err)
	}
	w.Controller = New(w.store, w.events, followed[*v1.PersistentVolumeClaim](t, w.store), followed[*v1.Pod](t, w.store))
	return w
}

// blind returns a controller that has seen nothing of the store.
func (w *world) blind() *Controller {
	return New(w.store, w.events, store.NewMirror[*v1.PersistentVolumeClaim](w.store, store.MirrorOptions{}), store.NewMirror[*v1.Pod](w.store, store.MirrorOptions{}))
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

func newPod(uid types.UID) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: uid},
		Spec: v1.PodSpec{Volumes: []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{
			VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}},
		}}}}},
	}
}

var podName = types.NamespacedName{Namespace: "default", Name: "p"}

func (w *world) claim(t *testing.T) *v1.PersistentVolumeClaim {
	t.Helper()
	claim, err := store.Get[*v1.PersistentVolumeClaim](t.Context(), w.store, "default", "p-v")
	require.NoError(t, err)
	return claim
}

func TestAPodGetsItsClaimOnce(t *testing.T) {
	w := newWorld(t, newPod("one"))
	require.NoError(t, w.blind().MakeClaims(t.Context(), podName), "a pod that is gone lacks nothing")
	require.NoError(t, w.MakeClaims(t.Context(), podName))
	claim := w.claim(t)
	assert.True(t, metav1.IsControlledBy(claim, newPod("one")))
	assert.True(t, IsMadeForPod(claim))
	assert.Equal(t, "web", claim.Labels["app"])
	assert.Contains(t, claim.Finalizers, objects.FinalizerClaimProtection)
	require.NoError(t, w.MakeClaims(t.Context(), podName))
	assert.Equal(t, claim.ResourceVersion, w.claim(t).ResourceVersion)
}

// A claim that has the name already is not taken. Only one that was not made here is an event: the other goes by itself.
func TestAClaimOfAnotherIsNotTaken(t *testing.T) {
	earlier := newPod("earlier")
	for name, tt := range map[string]struct {
		claim  *v1.PersistentVolumeClaim
		events int
	}{
		"by hand":            {&v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p-v"}}, 1},
		"for an earlier pod": {newClaim(earlier, &earlier.Spec.Volumes[0], types.NamespacedName{Namespace: "default", Name: "p-v"}), 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, newPod("one"), tt.claim)
			require.NoError(t, w.MakeClaims(t.Context(), podName), "the end of the claim wakes the pod")
			assert.Len(t, w.events.Events(), tt.events)
			assert.Equal(t, tt.claim.OwnerReferences, w.claim(t).OwnerReferences)
			unseen := New(w.store, w.events, w.blind().claims, w.pods)
			require.ErrorIs(t, unseen.MakeClaims(t.Context(), podName), store.ErrConflict, "no event would wake the pod")
		})
	}
}

// That the pod of a claim is gone is believed only of the store.
func TestAnOrphanIsOneInTheStore(t *testing.T) {
	w := newWorld(t, newPod("one"))
	require.NoError(t, w.MakeClaims(t.Context(), podName))
	claim := w.claim(t)
	orphan, err := w.IsOrphan(t.Context(), claim)
	require.NoError(t, err)
	assert.False(t, orphan, "memory knows the pod")
	orphan, err = w.blind().IsOrphan(t.Context(), claim)
	require.ErrorIs(t, err, store.ErrConflict, "memory has not seen the pod yet")
	assert.False(t, orphan)

	pod, err := store.Get[*v1.Pod](t.Context(), w.store, "default", "p")
	require.NoError(t, err)
	require.NoError(t, store.Delete(t.Context(), w.store, pod))
	orphan, err = w.blind().IsOrphan(t.Context(), claim)
	require.NoError(t, err)
	assert.True(t, orphan, "neither memory nor the store has the pod")
	_, err = store.Create(t.Context(), w.store, newPod("two"))
	require.NoError(t, err)
	orphan, err = w.blind().IsOrphan(t.Context(), claim)
	require.NoError(t, err)
	assert.True(t, orphan, "another pod has the name")

	delete(claim.Annotations, objects.AnnMadeForPod)
	orphan, err = w.blind().IsOrphan(t.Context(), claim)
	require.NoError(t, err)
	assert.False(t, orphan, "it was not made here")
}
