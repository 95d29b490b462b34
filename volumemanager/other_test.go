package volumemanager

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// TestAVolumeWaitsForTheOneAtItsPath: the path of a volume has the name of its PersistentVolume, not that of its storage. A pod
// that comes back after its PersistentVolume was made again with other storage gets the other one, and keeps it, however
// the teardown of the first one ends.
func TestAVolumeWaitsForTheOneAtItsPath(t *testing.T) {
	for name, faults := range map[string][]fake.Fault{
		"the teardown succeeds":              nil,
		"it fails without effect":            {fake.FailN(3, assert.AnError)},
		"it fails after its effect":          {fake.FailAfter(assert.AnError), fake.FailAfter(assert.AnError)},
		"it does nothing and reports no end": {fake.SkipWork(), fake.SkipWork()},
	} {
		for how, again := range map[string]func(w *world, pod *v1.Pod){
			"removed and added": func(w *world, pod *v1.Pod) { w.otherStorage("data"); w.add(pod) },
			"after a restart": func(w *world, pod *v1.Pod) {
				require.NoError(w.t, w.stop())
				w.otherStorage("data")
				w.prepare()
				w.plugin.Inject(fake.MethodTearDown, faults...)
				w.run()
				w.add(pod)
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					w := newWorld(t, Options{RuntimeDir: t.TempDir()})
					w.start()
					w.claim("data")
					pod := podOf("a", "data")
					w.add(pod)
					w.plugin.Inject(fake.MethodTearDown, faults...)
					require.NoError(t, w.manager.RemovePod(pod.UID))
					again(w, pod)
					w.shows(pod, "disk-other")
					w.manager.PodsComplete()
					pass(time.Hour)
					w.shows(pod, "disk-other")
					w.remove(pod)
					w.isClean()
				})
			})
		}
	}
}

// TestAVolumeThatNamesOtherStorageWaitsForTheFirst: the same for the storage that a pod names itself.
func TestAVolumeThatNamesOtherStorageWaitsForTheFirst(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.start()
		w.manager.PodsComplete()
		pod := podOf("a", "-data")
		for _, handle := range []string{"disk-1", "disk-2"} {
			require.NoError(t, w.backend.Create(handle, 1<<30))
		}
		pod.Spec.Volumes[0].CSI.VolumeAttributes = map[string]string{fake.ParameterHandle: "disk-1"}
		w.add(pod)
		w.shows(pod, "disk-1")
		release := make(chan struct{})
		w.plugin.Inject(fake.MethodTearDown, fake.HangUntil(release))
		other := pod.DeepCopy()
		other.Spec.Volumes[0].CSI.VolumeAttributes[fake.ParameterHandle] = "disk-2"
		require.NoError(t, w.manager.UpdatePod(t.Context(), other))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := w.manager.WaitForAttachAndMount(ctx, other)
		require.ErrorIs(t, err, volume.ErrInUse)
		require.ErrorContains(t, err, "disk-1")
		close(release)
		require.NoError(t, w.manager.WaitForAttachAndMount(t.Context(), other))
		w.shows(other, "disk-2")
		w.remove(other)
		w.isClean()
	})
}

// TestAnUpdateReachesAVolumeThatThePodKeeps: its PersistentVolume is gone, or is other storage now. The volume is set up again for the
// updated pod all the same, and its group cannot change.
func TestAnUpdateReachesAVolumeThatThePodKeeps(t *testing.T) {
	for name, change := range map[string]func(w *world){
		"it is other storage": func(w *world) { w.otherStorage("data") },
		"it is gone":          func(w *world) { w.deleteVolume("data") },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWorld(t, Options{})
				w.start()
				w.manager.PodsComplete()
				w.claim("data")
				pod := podOf("a", "data")
				release := make(chan struct{})
				w.plugin.Inject(fake.MethodSetUp, fake.HangUntil(release))
				require.NoError(t, w.manager.AddPod(t.Context(), pod))
				synctest.Wait()
				change(w)
				updated := pod.DeepCopy()
				updated.Annotations = map[string]string{"example.com/updated": "yes"}
				require.NoError(t, w.manager.UpdatePod(t.Context(), updated))
				close(release)
				require.NoError(t, w.manager.WaitForAttachAndMount(t.Context(), updated))
				synctest.Wait()
				assert.Equal(t, map[string]int{"SetUp": 2}, w.countSetUps())
				row, ok := w.manager.desired.VolumeToMount(w.manager.populator.Pod(pod.UID).Volumes[0].Name, volume.GetUniquePodName(pod))
				require.True(t, ok)
				assert.Equal(t, "yes", row.Pod.Annotations["example.com/updated"], "it is set up for the updated pod")
				w.shows(pod, "disk-data")
				updated.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr(int64(7))}
				require.ErrorIs(t, w.manager.UpdatePod(t.Context(), updated), ErrVolumeChanged)
				w.remove(pod)
				w.isClean()
			})
		})
	}
}

// otherStorage makes the PersistentVolume of a claim again, with other storage.
func (w *world) otherStorage(claim string) {
	w.t.Helper()
	w.deleteVolume(claim)
	pvc, err := store.Get[*v1.PersistentVolumeClaim](w.t.Context(), w.store, "default", claim)
	require.NoError(w.t, err)
	w.create(volumeOfClaim(pvc, func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "disk-other" }))
}

// deleteVolume deletes the PersistentVolume of a claim.
func (w *world) deleteVolume(claim string) {
	w.t.Helper()
	pv, err := store.Get[*v1.PersistentVolume](w.t.Context(), w.store, "", "pv-"+claim)
	require.NoError(w.t, err)
	require.NoError(w.t, store.Delete(w.t.Context(), w.store, pv))
}

// shows proves that a pod has one volume, and that it is the storage.
func (w *world) shows(pod *v1.Pod, handle string) {
	w.t.Helper()
	synctest.Wait()
	table, err := w.mounter.List(w.t.Context())
	require.NoError(w.t, err)
	var shown []string
	for _, mp := range table {
		if strings.HasPrefix(mp.Path, testRoot+"/pods/"+string(pod.UID)+"/") {
			shown = append(shown, mp.Source)
		}
	}
	require.Equal(w.t, []string{"/dev/fake/" + handle}, shown)
}
