package volumemanager

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
)

// TestOneStorageUnderSeveralNamesIsKnownAfterARestart: pods have the same storage under different inner names: by two
// PersistentVolumes, or by names of their own.
func TestOneStorageUnderSeveralNamesIsKnownAfterARestart(t *testing.T) {
	for name, again := range map[string]bool{"pods come again": true, "pods are gone": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWorld(t, Options{RuntimeDir: t.TempDir()})
				w.start()
				w.claim("one")
				w.claim("two", func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "disk-one" })
				pods := []*v1.Pod{podOf("a", "one"), podOf("b", "two"), podOf("c", "-own"), podOf("d", "-other")}
				for _, pod := range pods[2:] {
					pod.Spec.Volumes[0].CSI.VolumeAttributes = map[string]string{fake.ParameterHandle: "disk-one"}
				}
				for _, pod := range pods {
					w.add(pod)
				}
				mounts := w.mounts()
				assert.Len(t, mounts, 5)
				require.NoError(t, w.stop())

				w.start()
				assert.Empty(t, w.manager.Status().Damaged)
				if again {
					for _, pod := range pods {
						w.add(pod)
					}
					assert.Equal(t, mounts, w.mounts())
				}
				w.manager.PodsComplete()
				synctest.Wait()
				if again {
					assert.Equal(t, mounts, w.mounts())
					for _, pod := range pods {
						w.remove(pod)
					}
				}
				w.isClean()
			})
		})
	}
}

// TestAPodKeepsItsVolumeUnderTheNameThatItHas: a pod that names another PersistentVolume of the same storage would have it at
// another path, and the first one would stay mounted.
func TestAPodKeepsItsVolumeUnderTheNameThatItHas(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{RuntimeDir: t.TempDir()})
		w.start()
		w.manager.PodsComplete()
		w.claim("one")
		w.claim("two", func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "disk-one" })
		pod := podOf("a", "one")
		w.add(pod)
		mounts := w.mounts()
		other := pod.DeepCopy()
		other.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "two"
		require.NoError(t, w.manager.UpdatePod(t.Context(), other))
		synctest.Wait()
		require.ErrorIs(t, w.manager.PodStatus(pod.UID)[0].Err, ErrVolumeChanged)
		assert.Equal(t, mounts, w.mounts())
		require.NoError(t, w.manager.RemovePod(pod.UID))
		w.add(other)
		assert.NotEqual(t, mounts, w.mounts())
		w.remove(other)
		w.isClean()
	})
}

// TestAPodWithTwoNamesOfOneStorageHasItOnce: the pod's update and a restart leave the mount as it is.
func TestAPodWithTwoNamesOfOneStorageHasItOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{RuntimeDir: t.TempDir()})
		w.start()
		w.claim("one")
		w.claim("two", func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "disk-one" })
		pod := podOf("a", "one", "two")
		w.add(pod)
		mounts := w.mounts()
		assert.Len(t, mounts, 2)
		require.NoError(t, w.manager.UpdatePod(t.Context(), pod))
		require.NoError(t, w.manager.WaitForAttachAndMount(t.Context(), pod))
		require.NoError(t, w.stop())
		w.start()
		w.add(pod)
		w.manager.PodsComplete()
		synctest.Wait()
		assert.Equal(t, mounts, w.mounts())
		w.remove(pod)
		w.isClean()
	})
}
