package reconciler

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// overtaken is an actual state after whose read something else happens.
type overtaken struct {
	*cache.ActualStateOfWorld
	then func()
}

func (o overtaken) SnapshotOfPodInto(s *cache.VolumeSnapshot, name v1.UniqueVolumeName, pod volume.UniquePodName) bool {
	defer o.then()
	return o.ActualStateOfWorld.SnapshotOfPodInto(s, name, pod)
}

// TestWhatWasFoundIsNotForAPodThatIsAddedAgain: a worker reads the set-up that a restart has found. Then the pod is removed and added
// again, and the worker reads what that one wants.
func TestWhatWasFoundIsNotForAPodThatIsAddedAgain(t *testing.T) {
	r, desired, actual := newTestReconciler(t, testPods{})
	pod := testPod("web")
	podName := volume.GetUniquePodName(pod)
	want := cache.AddPodOptions{Pod: pod, OuterVolumeSpecName: "data", VolumeSpec: volume.NewSpecFromVolume(&v1.Volume{
		Name: "data", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "fake.example.com"}},
	})}
	name, err := desired.AddPodToVolume(want)
	require.NoError(t, err)
	require.NoError(t, actual.MarkVolumeAsAttached(name, want.VolumeSpec, testNode, ""))
	require.NoError(t, actual.MarkVolumeMountAsUncertain(operationexecutor.MountedVolume{VolumeName: name, PodName: podName, VolumeSpec: want.VolumeSpec}))
	r.Actual = overtaken{actual, func() {
		actual.MarkPodRemoved(podName)
		desired.DeletePod(podName)
		_, err := desired.AddPodToVolume(want)
		require.NoError(t, err)
	}}
	var v view
	r.planFor(&v, name, podName)
	assert.Equal(t, []action{{verb: verbUnmount, pod: podName}}, v.actions)
}
