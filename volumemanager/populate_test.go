package volumemanager

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// withBrokenStore makes the store of a world one that can be broken; it works at first.
func (w *world) withBrokenStore() *brokenStore {
	broken := &brokenStore{Store: w.store}
	broken.mended.Store(true)
	w.options.Store = broken
	return broken
}

// TestWhatCannotBeReadStaysWanted: before and after a restart, which is how pods lose their volumes elsewhere.
func TestWhatCannotBeReadStaysWanted(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		w.claim("data")
		w.blockClaim("disk")
		broken := w.withBrokenStore()
		m := w.start()
		m.PodsComplete()
		pod := blockPodOf("web", "disk")
		files := podOf("web", "data")
		pod.Spec.Volumes = append(pod.Spec.Volumes, files.Spec.Volumes...)
		pod.Spec.Containers[0].VolumeMounts = files.Spec.Containers[0].VolumeMounts
		w.add(pod)
		mounts, binds := w.mounts(), w.blocks.mapped()

		broken.mended.Store(false)
		updated := pod.DeepCopy()
		scratch := podOf("web", "-scratch")
		updated.Spec.Volumes = append(updated.Spec.Volumes, scratch.Spec.Volumes...)
		updated.Spec.Containers[0].VolumeMounts = append(updated.Spec.Containers[0].VolumeMounts, scratch.Spec.Containers[0].VolumeMounts...)
		require.NoError(t, m.UpdatePod(t.Context(), updated))
		pass(time.Hour)
		assert.Subset(t, w.mounts(), mounts)
		assert.Equal(t, binds, w.blocks.mapped())
		status := m.PodStatus(pod.UID)
		require.Len(t, status, 3)
		for _, s := range status {
			assert.Equal(t, PhaseMounted, s.Phase, s.OuterName)
		}
		require.ErrorIs(t, status[0].Err, errStore)
		require.NoError(t, status[2].Err, "what needs no claim is not held up")
		require.NoError(t, w.stop())

		m = w.start()
		require.NoError(t, m.AddPod(t.Context(), updated))
		m.PodsComplete()
		pass(time.Hour)
		assert.Subset(t, w.mounts(), mounts, "who knows what the pod uses")
		assert.Equal(t, binds, w.blocks.mapped())
		assert.Equal(t, PhaseUnresolved, m.PodStatus(pod.UID)[0].Phase)
		broken.mended.Store(true)
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), updated))
		w.remove(pod)
		w.isClean()
	})
}

// deleteClaim removes a claim of the namespace "default".
func (w *world) deleteClaim(name string) {
	w.t.Helper()
	require.NoError(w.t, w.store.Delete(w.t.Context(),
		store.Key{Kind: store.PersistentVolumeClaims, Namespace: "default", Name: name}, store.Preconditions{}))
}

// TestAClaimThatWasMadeAnewIsAnotherOne: it has the name of the old one, and not its volume.
func TestAClaimThatWasMadeAnewIsAnotherOne(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.claim("data")
		m := w.start()
		m.PodsComplete()
		pod := podOf("web", "data")
		w.add(pod)
		mounts := w.mounts()

		w.deleteClaim("data")
		w.create(claimOfName("data"))
		w.bind("data") // to the volume of the claim that is gone
		other := podOf("other", "data")
		require.NoError(t, m.AddPod(t.Context(), other))
		require.NoError(t, m.UpdatePod(t.Context(), pod))
		pass(time.Hour)
		for _, uid := range []string{"web", "other"} {
			err := m.PodStatus(podOf(uid).UID)[0].Err
			require.ErrorIs(t, err, ErrClaimNotReady)
			require.ErrorContains(t, err, `belongs to claim "default/data" with UID`)
		}
		assert.Equal(t, PhaseMounted, m.PodStatus(pod.UID)[0].Phase, "who has it keeps it")
		assert.Equal(t, PhaseUnresolved, m.PodStatus(other.UID)[0].Phase)
		assert.Subset(t, w.mounts(), mounts)
		assert.Len(t, w.mounts(), len(mounts))
	})
}

// TestAnEphemeralClaimIsThatOfItsPod: the claim is missing first, then it belongs to another owner, then to the pod.
func TestAnEphemeralClaimIsThatOfItsPod(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		m := w.start()
		m.PodsComplete()
		pod := podOf("web", "-cache")
		pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}
		require.NoError(t, m.AddPod(t.Context(), pod))
		says := func(text string) {
			synctest.Wait()
			s := m.PodStatus(pod.UID)[0]
			assert.Equal(t, PhaseUnresolved, s.Phase)
			require.ErrorIs(t, s.Err, ErrClaimNotReady)
			require.ErrorContains(t, s.Err, text)
		}
		says(`create claim "default/web-cache"`)
		w.claim("web-cache")
		says("was not made for this pod")
		owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
		w.changeClaim("web-cache", func(pvc *v1.PersistentVolumeClaim) { pvc.OwnerReferences = []metav1.OwnerReference{owner} })
		says("was not made for this pod")
		yes := true
		owner.Controller = &yes
		w.changeClaim("web-cache", func(pvc *v1.PersistentVolumeClaim) { pvc.OwnerReferences = []metav1.OwnerReference{owner} })
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
		assert.Equal(t, "pv-web-cache", m.GetMountedVolumesForPod(volume.GetUniquePodName(pod))["cache"].InnerVolumeSpecName)

		again := pod.DeepCopy()
		again.UID = "uid-of-another-web"
		require.NoError(t, m.AddPod(t.Context(), again))
		synctest.Wait()
		require.ErrorContains(t, m.PodStatus(again.UID)[0].Err, "was not made for this pod", "a pod of the same name is another one")
		require.NoError(t, m.RemovePod(again.UID))
		w.remove(pod)
		w.isClean()
	})
}
