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

// waitingForPath holds the volumes of a pod that wait for another volume at their path.
type waitingForPath map[volume.UniquePodName][]v1.UniqueVolumeName

func (w waitingForPath) add(pod volume.UniquePodName, name v1.UniqueVolumeName) {
	if !slices.Contains(w[pod], name) {
		w[pod] = append(w[pod], name)
	}
}

// remove reports whether the volume was waiting.
func (w waitingForPath) remove(pod volume.UniquePodName, name v1.UniqueVolumeName) bool {
	i := slices.Index(w[pod], name)
	if i < 0 {
		return false
	}
	if w[pod] = slices.Delete(w[pod], i, i+1); len(w[pod]) == 0 {
		delete(w, pod)
	}
	return true
}

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
			r.waiting.add(op.pod, op.volume)
			return other.volume
		}
	}
	if op.kind == operationexecutor.OpMount {
		r.waiting.add(op.pod, op.volume) // Wait before the actual state is read: the end of a teardown is then not missed.
	}
	r.running = append(r.running, op)
	return ""
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
	r.mu.Lock()
	if len(others) == 0 {
		r.waiting.remove(op.pod, op.volume)
		r.mu.Unlock()
		return ""
	}
	by = others[0]
	r.running = r.running.without(op)
	refused := slices.DeleteFunc(others, func(name v1.UniqueVolumeName) bool { return !r.waiting.remove(op.pod, name) })
	r.mu.Unlock()
	for _, name := range refused {
		r.queue.Add(podvolume.Key{Volume: name, Pod: op.pod})
	}
	return by
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
