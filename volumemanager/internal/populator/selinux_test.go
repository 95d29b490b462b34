package populator

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// podOf returns a pod with one container that mounts inline volumes.
func podOf(name string, volumes ...string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	c := v1.Container{Name: "main"}
	for _, outer := range volumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: outer, VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "test.example.com"}}})
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: outer, MountPath: "/" + outer})
	}
	pod.Spec.Containers = []v1.Container{c}
	return pod
}

// levels returns labels that differ only in the level.
type levels struct{}

func (levels) FileLabel(o *v1.SELinuxOptions) (string, error) {
	if o.User != "" {
		return "", fmt.Errorf("user %q: %w", o.User, volume.ErrInvalid)
	}
	return "system_u:object_r:container_file_t:" + o.Level, nil
}

func TestLabelsOfContainers(t *testing.T) {
	yes := true
	level := func(level string) *v1.SecurityContext {
		return &v1.SecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: level}}
	}
	pod := podOf("web", "a", "b")
	mounts := pod.Spec.Containers[0].VolumeMounts
	pod.Spec.Containers = []v1.Container{
		{Name: "own", VolumeMounts: mounts[:1], SecurityContext: level("s0:c1")},
		{Name: "device", VolumeDevices: []v1.VolumeDevice{{Name: "a"}}, SecurityContext: level("s0:c1")},
		{Name: "of the pod", VolumeMounts: mounts[:1]},
		{Name: "free", VolumeMounts: mounts, SecurityContext: &v1.SecurityContext{Privileged: &yes, SELinuxOptions: &v1.SELinuxOptions{Level: "s0:c5"}}},
		{Name: "elsewhere", VolumeMounts: mounts[1:], SecurityContext: &v1.SecurityContext{SELinuxOptions: &v1.SELinuxOptions{User: "who"}}},
	}
	labels := func() ([]string, error) { return labelsOf(levels{}, pod, &pod.Spec.Volumes[0]) }
	got, err := labels()
	require.NoError(t, err)
	assert.Equal(t, []string{"system_u:object_r:container_file_t:s0:c1"}, got)
	pod.Spec.SecurityContext = &v1.PodSecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: "s0:c9"}}
	got, err = labels()
	require.NoError(t, err)
	assert.Equal(t, []string{"system_u:object_r:container_file_t:s0:c1", "system_u:object_r:container_file_t:s0:c9"}, got)
	_, err = labelsOf(levels{}, pod, &pod.Spec.Volumes[1])
	require.ErrorIs(t, err, volume.ErrInvalid)
	require.ErrorContains(t, err, `"elsewhere"`)
	got, err = labelsOf(nil, pod, &pod.Spec.Volumes[1])
	require.NoError(t, err)
	assert.Empty(t, got, "SELinux is off")
}
