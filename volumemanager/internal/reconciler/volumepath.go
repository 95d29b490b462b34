package reconciler

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// This file ensures that two volumes of a pod never use the same path at the same time. Plugins compute the path from the pod
// and the inner name, but the unique name from the storage. Two volumes have the same path if a PersistentVolume was created
// again with another handle, or if a pod's own volume names other storage than before. The set-up of the second volume would
// take the first volume's mount for its own, and the teardown of the first would then unmount it.

// volumePath identifies the path of a volume within a pod.
type volumePath struct{ plugin, inner string }

// pathOf returns the path of an action; the zero value if the action is not for one pod.
func (v *view) pathOf(a action) volumePath {
	switch a.verb {
	case verbUnmount:
		mounted := v.mounted(a.pod)
		return volumePath{mounted.PluginName, mounted.InnerVolumeSpecName}
	case verbMount, verbRemount, verbExpand:
		if row := v.wantedBy(a.pod); row != nil {
			return volumePath{row.PluginName, row.VolumeSpec.Name()}
		}
	default:
	}
	return volumePath{}
}

// addIfPathIsFree adds an operation to the running ones, unless an operation on another volume at its path runs. Then it returns
// that volume, and the volume of the operation is queued again when an operation for its pod has ended.
func (r *Reconciler) addIfPathIsFree(op *operation) (by v1.UniqueVolumeName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, other := range r.running {
		if op.path != (volumePath{}) && other.pod == op.pod && other.path == op.path && other.volume != op.volume {
			r.awaitPath(op)
			return other.volume
		}
	}
	if op.kind == operationexecutor.OpMount {
		r.awaitPath(op) // Wait before the actual state is read: the end of a teardown is then not missed.
	}
	r.running = append(r.running, op)
	return ""
}

// awaitPath notes that a volume waits for its path. The caller holds mu.
func (r *Reconciler) awaitPath(op *operation) {
	if waiting := r.waiting[op.pod]; !slices.Contains(waiting, op.volume) {
		r.waiting[op.pod] = append(waiting, op.volume)
	}
}

// otherVolumeAtPath returns another volume that is, or may be, set up at the path of a running set-up. If there is one, the
// set-up is removed from the running operations, and its volume keeps waiting for the path. A teardown of the other volume may
// have found the set-up running, and may wait for the path, too: it is queued again.
func (r *Reconciler) otherVolumeAtPath(op *operation) (by v1.UniqueVolumeName) {
	if op.kind != operationexecutor.OpMount {
		return ""
	}
	others := slices.DeleteFunc(r.Actual.VolumesOfPodNamed(op.pod, op.path.plugin, op.path.inner),
		func(name v1.UniqueVolumeName) bool { return name == op.volume })
	if len(others) == 0 {
		r.takeWaiting(op.pod, op.volume)
		return ""
	}
	r.removeRunning(op)
	for _, name := range others {
		if r.takeWaiting(op.pod, name) {
			r.queue.Add(podvolume.Key{Volume: name, Pod: op.pod})
		}
	}
	return others[0]
}

// takeWaiting takes a volume out of those that wait for a path of a pod. It reports whether the volume was among them.
func (r *Reconciler) takeWaiting(pod volume.UniquePodName, name v1.UniqueVolumeName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.Index(r.waiting[pod], name)
	if i < 0 {
		return false
	}
	if r.waiting[pod] = slices.Delete(r.waiting[pod], i, i+1); len(r.waiting[pod]) == 0 {
		delete(r.waiting, pod)
	}
	return true
}

// failUsedPath stores that a volume waits for another one that has its path.
func (r *Reconciler) failUsedPath(op *operation, by v1.UniqueVolumeName) {
	r.fail(podvolume.Key{Volume: op.volume, Pod: op.pod}, Failure{Err: fmt.Errorf(
		"volume %q has the same path and is not torn down for pod %q yet: %w", by, op.pod, volume.ErrInUse)})
}

// queueWaitingForPath queues the volumes that wait for a path of a pod.
func (r *Reconciler) queueWaitingForPath(pod volume.UniquePodName) {
	r.mu.Lock()
	waiting := r.waiting[pod]
	delete(r.waiting, pod)
	r.mu.Unlock()
	for _, name := range waiting {
		r.queue.Add(podvolume.Key{Volume: name, Pod: pod})
	}
}
