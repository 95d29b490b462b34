package volumemanager

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// smallClaim is a claim of 512Mi on storage that could have 1Gi.
func (w *world) smallClaim(name string) {
	w.claim(name, func(pv *v1.PersistentVolume) { pv.Spec.Capacity = storage("512Mi") })
	w.changeClaim(name, func(pvc *v1.PersistentVolumeClaim) { pvc.Status.Capacity = storage("512Mi") })
}

// grow does what the control plane does last: it gives the PersistentVolume its size.
func (w *world) grow(name, size string) {
	w.t.Helper()
	pv, err := store.Get[*v1.PersistentVolume](w.t.Context(), w.store, "", "pv-"+name)
	require.NoError(w.t, err)
	pv.Spec.Capacity = storage(size)
	_, err = w.store.Update(w.t.Context(), pv)
	require.NoError(w.t, err)
}

// askNode has the claim ask the node to go on. Before grow: a volume that has grown and whose claim tells nothing is expanded
// at once.
func (w *world) askNode(name, size string) {
	w.t.Helper()
	w.setResize(name, size, v1.PersistentVolumeClaimNodeResizePending)
}

func (w *world) setResize(name, size string, status v1.ClaimResourceStatus) {
	w.t.Helper()
	w.changeClaim(name, func(pvc *v1.PersistentVolumeClaim) {
		pvc.Status.AllocatedResources = storage(size)
		pvc.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: status}
	})
}

func (w *world) sizeOfClaim(name string) string {
	size := w.claimStatus(name).Capacity[v1.ResourceStorage]
	return size.String()
}

func (w *world) sizeHere(name string) string {
	size, _ := w.backend.SizeOn("disk-"+name, testNode)
	return resource.NewQuantity(size, resource.BinarySI).String()
}

// count returns how often a method of the plugin was called.
func (w *world) count(method fake.Method) int {
	n := 0
	for _, c := range w.plugin.Calls() {
		if c.Method == method {
			n++
		}
	}
	return n
}

// startWith runs a manager of a pod whose volume has 512Mi.
func (w *world) startWith(pod *v1.Pod) *Manager {
	w.t.Helper()
	w.smallClaim("data")
	m := w.start()
	m.PodsComplete()
	w.add(pod)
	return m
}

// TestAVolumeGrowsWhileItIsUsed, with the last of the two changes that it takes, and the claim says so.
func TestAVolumeGrowsWhileItIsUsed(t *testing.T) {
	changes := map[string]func(w *world){
		"volume": func(w *world) { w.grow("data", "1Gi") },
		"claim":  func(w *world) { w.askNode("data", "1Gi") },
	}
	for first, last := range map[string]string{"volume": "claim", "claim": "volume"} {
		t.Run(last+" last", func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWorld(t, Options{})
				pod := podOf("web", "data")
				m := w.startWith(pod)
				w.setResize("data", "1Gi", v1.PersistentVolumeClaimControllerResizeInProgress)
				began := time.Now()
				changes[first](w)
				synctest.Wait()
				assert.Zero(t, w.count(fake.MethodNodeExpand))
				status := m.PodStatus(pod.UID)[0]
				assert.Equal(t, PhaseMounted, status.Phase)
				if first == "volume" {
					require.ErrorIs(t, status.Err, operationexecutor.ErrExpansionNotRequested)
				}
				planned := m.Status().Planned
				assert.Zero(t, time.Since(began))
				pass(24 * time.Hour)
				assert.Equal(t, planned, m.Status().Planned, "it waits for the control plane, and for no clock")

				began = time.Now()
				changes[last](w)
				synctest.Wait()
				assert.Equal(t, "1Gi", w.sizeHere("data"))
				assert.Equal(t, "1Gi", w.sizeOfClaim("data"))
				assert.Empty(t, w.claimStatus("data").AllocatedResourceStatuses)
				assert.Empty(t, w.claimStatus("data").Conditions)
				assert.Equal(t, 1, w.count(fake.MethodNodeExpand))
				assert.Equal(t, 1, w.count(fake.MethodSetUp), "the mount is left alone")
				assert.Zero(t, time.Since(began))
				require.NoError(t, m.PodStatus(pod.UID)[0].Err)
				assert.Zero(t, m.expansion.Tracked())
				w.remove(pod)
				w.isClean()
			})
		})
	}
}

// TestAControlPlaneThatRecordsNothingIsEnough: the PersistentVolume alone tells the size.
func TestAControlPlaneThatRecordsNothingIsEnough(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		pod := podOf("web", "data")
		w.startWith(pod)
		w.grow("data", "1Gi")
		synctest.Wait()
		assert.Equal(t, "1Gi", w.sizeHere("data"))
		assert.Equal(t, "1Gi", w.sizeOfClaim("data"))
		w.remove(pod)
		w.isClean()
	})
}

// TestWhatCanNeverBeIsNotTriedAgain before the control plane asks for something else.
func TestWhatCanNeverBeIsNotTriedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		pod := podOf("web", "data")
		m := w.startWith(pod)
		w.plugin.Inject(fake.MethodNodeExpand, fake.Fail(volume.ErrInfeasible))
		w.askNode("data", "1Gi")
		w.grow("data", "1Gi")
		pass(24 * time.Hour)
		assert.Equal(t, 1, w.count(fake.MethodNodeExpand))
		assert.Equal(t, v1.PersistentVolumeClaimNodeResizeInfeasible, w.claimStatus("data").AllocatedResourceStatuses[v1.ResourceStorage])
		status := m.PodStatus(pod.UID)[0]
		assert.Equal(t, PhaseMounted, status.Phase)
		require.ErrorIs(t, status.Err, volume.ErrInfeasible)

		w.askNode("data", "768Mi")
		synctest.Wait()
		assert.Equal(t, "768Mi", w.sizeHere("data"))
		assert.Equal(t, "768Mi", w.sizeOfClaim("data"))
		w.remove(pod)
		w.isClean()
	})
}

// TestAnExpansionThatFailsIsTriedAgainAfterAWhile: what the node writes into the claim does not end the wait.
func TestAnExpansionThatFailsIsTriedAgainAfterAWhile(t *testing.T) {
	for name, err := range map[string]error{"for good": errStore, "for now": volume.Transient(errStore), "in doubt": volume.Uncertain(errStore)} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWorld(t, Options{})
				pod := podOf("web", "data")
				m := w.startWith(pod)
				w.plugin.Inject(fake.MethodNodeExpand, fake.FailN(6, err))
				w.askNode("data", "1Gi")
				w.grow("data", "1Gi")
				pass(10 * time.Second)
				assert.Less(t, w.count(fake.MethodNodeExpand), 7)
				require.ErrorIs(t, m.PodStatus(pod.UID)[0].Err, errStore)
				assert.NotZero(t, m.PodStatus(pod.UID)[0].NextTry)
				require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod), "it can be used")
				pass(10 * time.Minute)
				assert.Equal(t, "1Gi", w.sizeOfClaim("data"))
				assert.Equal(t, 7, w.count(fake.MethodNodeExpand))
				w.remove(pod)
				w.isClean()
			})
		})
	}
}

// TestWhatCannotGrowWhileItIsUsedGrowsWhenItIsMountedNext.
func TestWhatCannotGrowWhileItIsUsedGrowsWhenItIsMountedNext(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		pod := podOf("web", "data")
		w.startWith(pod)
		w.plugin.Inject(fake.MethodNodeExpand, fake.Fail(volume.ErrInUse))
		w.askNode("data", "1Gi")
		w.grow("data", "1Gi")
		pass(time.Hour)
		assert.Equal(t, 1, w.count(fake.MethodNodeExpand))
		assert.Equal(t, "512Mi", w.sizeOfClaim("data"))

		other := podOf("db", "data")
		w.plugin.Inject(fake.MethodNodeExpand, fake.Fail(volume.ErrInUse))
		w.add(other)
		pass(time.Hour)
		assert.Equal(t, 2, w.count(fake.MethodNodeExpand), "once for another pod, which has started")
		w.remove(other)

		w.remove(pod)
		require.NoError(t, w.manager.WaitForNodeEmpty(t.Context()))
		w.add(pod)
		assert.Equal(t, "1Gi", w.sizeOfClaim("data"))
		assert.Equal(t, 3, w.count(fake.MethodNodeExpand))
		w.remove(pod)
		w.isClean()
	})
}

// TestEveryNodeGrowsWhatItHas, though another one was first and has told the claim.
func TestEveryNodeGrowsWhatItHas(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		pod, reader := podOf("web", "data"), podOf("db", "data:ro")
		m := w.startWith(pod)
		w.add(reader)
		w.changeClaim("data", func(pvc *v1.PersistentVolumeClaim) {
			pvc.Status.Capacity, pvc.Status.AllocatedResources = storage("1Gi"), storage("1Gi")
		})
		w.grow("data", "1Gi")
		synctest.Wait()
		assert.Equal(t, "1Gi", w.sizeHere("data"))
		assert.Equal(t, 1, w.count(fake.MethodNodeExpand), "once for all pods")
		for _, status := range append(m.PodStatus(pod.UID), m.PodStatus(reader.UID)...) {
			require.NoError(t, status.Err)
		}
		w.remove(pod)
		w.remove(reader)
		w.isClean()
	})
}

// raceStore changes the store after an object of a kind was read, and before the reader has it.
type raceStore struct {
	store.Store
	kind  schema.GroupVersionKind
	after func()
}

func (s *raceStore) Get(ctx context.Context, key store.Key) (runtime.Object, error) {
	obj, err := s.Store.Get(ctx, key)
	if after := s.after; after != nil && key.Kind == s.kind {
		s.after = nil
		after()
	}
	return obj, err
}

// TestAVolumeThatGrowsWhileItsPodIsReadGrows: the pod has an old PersistentVolume, and no change comes after.
func TestAVolumeThatGrowsWhileItsPodIsReadGrows(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.smallClaim("data")
		m := w.startOn(&raceStore{Store: w.store, kind: store.PersistentVolumes, after: func() {
			w.askNode("data", "1Gi")
			w.grow("data", "1Gi")
			synctest.Wait()
		}})
		m.PodsComplete()
		pod := podOf("web", "data")
		require.NoError(t, m.AddPod(t.Context(), pod))
		synctest.Wait()
		assert.Equal(t, "1Gi", w.sizeOfClaim("data"))
		assert.Zero(t, m.expansion.Tracked())
		w.remove(pod)
		w.isClean()
	})
}

// TestAClaimThatAsksWhileItIsReadIsNotMissed: the node has read that it need not do anything yet, and no change comes after.
func TestAClaimThatAsksWhileItIsReadIsNotMissed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.smallClaim("data")
		race := &raceStore{Store: w.store, kind: store.PersistentVolumeClaims}
		m := w.startOn(race)
		m.PodsComplete()
		pod := podOf("web", "data")
		w.add(pod)
		w.setResize("data", "1Gi", v1.PersistentVolumeClaimControllerResizeInProgress)
		synctest.Wait()
		race.after = func() {
			w.askNode("data", "1Gi")
			time.Sleep(time.Millisecond) // of the bubble
		}
		w.grow("data", "1Gi")
		pass(time.Minute)
		assert.Equal(t, "1Gi", w.sizeOfClaim("data"))
		w.remove(pod)
		w.isClean()
	})
}

// TestAPodMayGoWhileItsVolumeGrows: the teardown waits for the call, and nothing is left.
func TestAPodMayGoWhileItsVolumeGrows(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		pod := podOf("web", "data")
		m := w.startWith(pod)
		release := make(chan struct{})
		w.plugin.Inject(fake.MethodNodeExpand, fake.HangUntil(release))
		w.askNode("data", "1Gi")
		w.grow("data", "1Gi")
		require.NoError(t, w.plugin.AwaitCalls(t.Context(), fake.MethodNodeExpand, 1))
		require.NoError(t, m.RemovePod(pod.UID))
		synctest.Wait()
		assert.Equal(t, PhaseMounted, m.PodStatus(pod.UID)[0].Phase)
		assert.Zero(t, w.count(fake.MethodTearDown))
		close(release)
		require.NoError(t, m.WaitForUnmount(t.Context(), pod))
		w.isClean()
		assert.Zero(t, m.expansion.Tracked())
	})
}
