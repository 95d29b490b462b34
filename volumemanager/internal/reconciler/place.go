package reconciler

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// This file keeps two volumes of a pod from one path. Plugins compute the path from the pod and the inner name, but the
// unique name from the storage. Two volumes have one path if a PersistentVolume was made again with another handle, or if a
// pod's own volume names other storage than before. The second set-up would find the first volume's mount and take it for
// its own, and the first teardown would then unmount it.

// place stands for the path of a volume of a pod.
type place struct{ plugin, inner string }

// placeOf returns the place of an action; the zero value if the action is not for one pod.
func (v *view) placeOf(a action) place {
	switch a.verb {
	case verbUnmount:
		mounted := v.mounted(a.pod)
		return place{mounted.PluginName, mounted.InnerVolumeSpecName}
	case verbMount, verbRemount, verbExpand:
		if row := v.wantedBy(a.pod); row != nil {
			return place{row.PluginName, row.VolumeSpec.Name()}
		}
	default:
	}
	return place{}
}

// occupy adds an operation to the running ones, unless an operation on another volume at its place runs. It returns that
// volume. The volume of the operation is queued again when an operation for its pod has ended.
func (r *Reconciler) occupy(op *operation) (by v1.UniqueVolumeName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, other := range r.running {
		if op.pod != "" && other.pod == op.pod && other.place == op.place && other.volume != op.volume {
			r.awaitPlace(op)
			return other.volume
		}
	}
	if op.kind == operationexecutor.OpMount {
		r.awaitPlace(op) // Before the actual state is read: the end of a teardown is not missed.
	}
	r.running = append(r.running, op)
	return ""
}

// awaitPlace notes that a volume waits for its place. The caller holds mu.
func (r *Reconciler) awaitPlace(op *operation) {
	if waiting := r.waiting[op.pod]; !slices.Contains(waiting, op.volume) {
		r.waiting[op.pod] = append(waiting, op.volume)
	}
}

// isOccupied returns another volume that is, or may be, set up at the place of a running set-up. If there is one, the
// set-up is taken out, and its volume keeps waiting for the place.
func (r *Reconciler) isOccupied(op *operation) (by v1.UniqueVolumeName) {
	if op.kind != operationexecutor.OpMount {
		return ""
	}
	for _, name := range r.Actual.VolumesOfPodNamed(op.pod, op.place.plugin, op.place.inner) {
		if name != op.volume {
			by = name
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if by != "" {
		r.running = r.running.without(op)
		return by
	}
	waiting := slices.DeleteFunc(r.waiting[op.pod], func(name v1.UniqueVolumeName) bool { return name == op.volume })
	if r.waiting[op.pod] = waiting; len(waiting) == 0 {
		delete(r.waiting, op.pod)
	}
	return ""
}

// failOccupied notes that a volume waits for the one that has its place.
func (r *Reconciler) failOccupied(op *operation, by v1.UniqueVolumeName) {
	r.fail(podvolume.Key{Volume: op.volume, Pod: op.pod}, Failure{Err: fmt.Errorf(
		"volume %q has the same path and is not torn down for pod %q yet: %w", by, op.pod, volume.ErrInUse)})
}

// freePlace queues the volumes that wait for a place of a pod.
func (r *Reconciler) freePlace(pod volume.UniquePodName) {
	r.mu.Lock()
	waiting := r.waiting[pod]
	delete(r.waiting, pod)
	r.mu.Unlock()
	for _, name := range waiting {
		r.queue.Add(podvolume.Key{Volume: name, Pod: pod})
	}
}
