package volumemanager

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

func TestEveryFaultOfAContainerIsNamed(t *testing.T) {
	pod := podOf("web", "one", "two", "three")
	faulty := []v1.VolumeMount{{Name: "one", MountPath: "a"}, {Name: "two", MountPath: "/"}, {Name: "three", MountPath: "/b", SubPath: ".."}}
	pod.Spec.Containers[0].VolumeMounts = faulty[:1]
	pod.Spec.InitContainers = []v1.Container{{Name: "init", VolumeMounts: faulty[1:2]}}
	pod.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug", VolumeMounts: faulty[2:]}}}
	m := newWorld(t, Options{}).prepare()
	err := m.AddPod(t.Context(), pod)
	require.ErrorIs(t, err, volume.ErrInvalid)
	for _, name := range []string{"web", "main", "init", "debug", "one", "two", "three"} {
		assert.ErrorContains(t, err, name)
	}
}

// TestACallerThatChangesItsPodChangesNothing of what a pod has, and of what is done for it later.
func TestACallerThatChangesItsPodChangesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		w.start().PodsComplete()
		w.claim("data")
		pod := podOf("a", "data", "-own")
		asked := pod.DeepCopy()
		require.NoError(t, w.manager.AddPod(t.Context(), pod))
		pod.UID, pod.Name = "other", "other"
		pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName, pod.Spec.Volumes[1].CSI.Driver = "other", "other"
		clear(pod.Spec.Containers[0].VolumeMounts)
		clear(pod.Spec.Containers)
		clear(pod.Spec.Volumes)
		require.NoError(t, w.manager.WaitForAttachAndMount(t.Context(), asked))
		require.NoError(t, w.manager.UpdatePod(t.Context(), asked), "it is what it was")
		before := w.mounts()
		require.NoError(t, w.stop())
		w.start()
		w.add(asked)
		assert.Equal(t, before, w.mounts())
		w.manager.PodsComplete()
		w.remove(asked)
		w.isClean()
	})
}
