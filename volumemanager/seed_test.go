package volumemanager

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// seedOfManager is what Kubernetes calls a volume manager, with ctx where a call can wait, and Run with ctx alone.
type seedOfManager interface {
	Run(ctx context.Context) error
	WaitForAttachAndMount(ctx context.Context, pod *v1.Pod) error
	GetMountedVolumesForPod(podName volume.UniquePodName) VolumeMap
	GetExtraSupplementalGroupsForPod(pod *v1.Pod) []int64
	GetVolumesInUse() []v1.UniqueVolumeName
	VolumeIsAttached(volumeName v1.UniqueVolumeName) bool
	MarkVolumesAsReportedInUse(volumesReportedAsInUse []v1.UniqueVolumeName)
}

func TestTheNamesOfTheSeedAreThere(t *testing.T) {
	assert.Implements(t, (*seedOfManager)(nil), &Manager{})
}
