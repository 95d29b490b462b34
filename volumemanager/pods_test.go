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
