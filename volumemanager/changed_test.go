package volumemanager

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// TestAPodIsNotReadyWithWhatItNoLongerAsksFor: a name of its spec means another volume now, which is not there yet.
func TestAPodIsNotReadyWithWhatItNoLongerAsksFor(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		m := w.start()
		m.PodsComplete()
		pod := podOf("web", "-data")
		w.add(pod)
		other := podOf("web", "data") // The claim of this name does not exist.
		require.NoError(t, m.UpdatePod(t.Context(), other))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, m.WaitForAttachAndMount(ctx, other), ErrClaimNotReady)
		assert.Empty(t, m.GetMountedVolumesForPod(volume.GetUniquePodName(other)))

		w.claim("data")
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), other))
		synctest.Wait() // Another worker does that, beside.
		assert.Contains(t, w.changes(), "TearDown uid-web", "what it had goes when it is known what it has instead")
		w.remove(other)
		w.isClean()
	})
}

// TestAVolumeThatIsRenamedIsKnownByItsNewName, and by no other.
func TestAVolumeThatIsRenamedIsKnownByItsNewName(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.claim("data")
		m := w.start()
		m.PodsComplete()
		pod := podOf("web", "data")
		w.add(pod)
		before := m.GetMountedVolumesForPod(volume.GetUniquePodName(pod))["data"].Path
		renamed := pod.DeepCopy()
		renamed.Spec.Volumes[0].Name = "diary"
		renamed.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "diary", MountPath: "/diary"}}
		require.NoError(t, m.UpdatePod(t.Context(), renamed))
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), renamed))
		volumes := m.GetMountedVolumesForPod(volume.GetUniquePodName(pod))
		require.Len(t, volumes, 1)
		assert.Equal(t, before, volumes["diary"].Path)
		stats, err := m.WaitForStats(t.Context(), 0)
		require.NoError(t, err)
		require.Len(t, stats, 1)
		assert.Equal(t, "diary", stats[0].OuterName)
		w.remove(renamed)
		w.isClean()
	})
}
