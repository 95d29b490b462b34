package volume

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
)

// PodRecycler runs pods that recycle volumes, for plugins whose volumes cannot be reached from this process, or must not be. An
// orchestrator implements it and gives it to the constructor of such a plugin; without one a plugin recycles in its process.
// examples/recycler is one to copy.
type PodRecycler interface {
	// RecycleByPod runs a pod that deletes the content of the volume. It returns nil when the pod has succeeded: nothing
	// else proves that the volume is empty. It first removes a recycling pod that an earlier process has left; the success of
	// that pod does not count. It stops a pod that has not ended when ctx ends or timeout is over, and the error says so. It
	// records what happens to the pod with recorder.
	RecycleByPod(ctx context.Context, request PodRecycleRequest, recorder RecycleEventRecorder) error
}

// PodRecycleRequest says what a pod is to recycle.
type PodRecycleRequest struct {
	// PVName is the name of the PersistentVolume.
	PVName string
	// Volume is how the pod names the volume.
	Volume v1.VolumeSource
	// Timeout is how long the pod may take.
	Timeout time.Duration
}

// The recycler's times of Kubernetes: at least the minimum, or the increment for each GiB.
const (
	recyclerMinimum   = 300 * time.Second
	recyclerIncrement = 30 * time.Second
)

// RecyclerTimeout returns how long it may take to recycle a PersistentVolume: half a minute for each GiB of its capacity, and
// five minutes at least, as in Kubernetes.
func RecyclerTimeout(pv *v1.PersistentVolume) time.Duration {
	capacity := pv.Spec.Capacity[v1.ResourceStorage]
	gibs := min(capacity.Value()>>30, 1<<20) // More would be years.
	return max(recyclerMinimum, time.Duration(gibs)*recyclerIncrement)
}
