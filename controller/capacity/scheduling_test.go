package capacity_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/controller/scheduling"
	"github.com/volumekit/volumekit/store"
)

// podWith returns a pod with a claim of its name that asks for size, and the claim.
func podWith(name, size string) (*v1.Pod, *v1.PersistentVolumeClaim) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1.PodSpec{Volumes: []v1.Volume{
		{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}},
	}}}
	return pod, &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1.PersistentVolumeClaimSpec{
		StorageClassName: ptr("late"), AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}},
	}}
}

// A pod is not placed where there is no room for its volume, and is placed when another volume was deleted.
func TestAPodIsPlacedWhereThereIsRoom(t *testing.T) {
	inWorld(t, ofHundred, func(w *world) {
		t := w.t
		w.create(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "fake.example.com"}, Spec: storagev1.CSIDriverSpec{StorageCapacity: ptr(true)}})
		deleted := v1.PersistentVolumeReclaimDelete
		class := classOf("late", nil)
		class.ReclaimPolicy = &deleted
		w.create(class)
		w.start()
		pvs := persistentvolume.New(w.plugins, w.store, persistentvolume.Options{})
		changed := make(chan struct{}, 1000)
		s := scheduling.New(w.store, scheduling.Options{Changed: func(e scheduling.ClusterEvent) {
			if e.Kind == scheduling.CapacityRaised {
				changed <- struct{}{}
			}
		}})
		for _, run := range []func(context.Context) error{pvs.Run, s.Run} {
			ctx, cancel := context.WithCancel(w.t.Context())
			ended := make(chan error, 1)
			go func() { ended <- run(ctx) }()
			w.t.Cleanup(func() { cancel(); require.NoError(w.t, <-ended) })
		}
		require.True(t, s.WaitSynced(t.Context()))

		large, itsClaim := podWith("large", "80Gi")
		w.create(itsClaim)
		w.create(large)
		require.Equal(t, []string{"a1", "a2", "b1"}, nodesFor(t, s, large))
		reservation, err := s.Reserve(large, "a1")
		require.NoError(t, err)
		require.NoError(t, reservation.Bind(t.Context()))
		change(w, large, func(p *v1.Pod) { p.Spec.NodeName = "a1" })
		assert.Equal(t, map[string]int64{"late/a": 20, "late/b": 20}, w.said())

		small, claim := podWith("small", "50Gi")
		w.create(claim)
		w.create(small)
		require.Empty(t, nodesFor(t, s, small))
		result, err := s.Find(small)
		require.NoError(t, err)
		require.Equal(t, scheduling.NoCapacity, result.Why("a1").Reason)

		for len(changed) > 0 {
			<-changed
		}
		w.delete(large)
		w.delete(itsClaim)
		wait(time.Minute) // The controller may have to try again. Nothing here polls.
		assert.Equal(t, map[string]int64{"late/a": 100, "late/b": 100}, w.said())
		assert.NotEmpty(t, changed, "the scheduler is told")
		require.Equal(t, []string{"a1", "a2", "b1"}, nodesFor(t, s, small))
		reservation, err = s.Reserve(small, "a2")
		require.NoError(t, err)
		require.NoError(t, reservation.Bind(t.Context()))
		bound, err := store.Get[*v1.PersistentVolumeClaim](t.Context(), w.store, "default", "small")
		require.NoError(t, err)
		assert.Equal(t, v1.ClaimBound, bound.Status.Phase)
	})
}

func nodesFor(t *testing.T, s *scheduling.Scheduler, pod *v1.Pod) []string {
	t.Helper()
	result, err := s.Find(pod)
	require.NoError(t, err)
	return slices.Sorted(result.Nodes())
}
