package recovery

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// A pod that was removed before all pods had been added is remembered as long as anything of it is, or may be, left.
// Its set-ups are then known to be unwanted. It is forgotten with the last of them: the list does not grow forever if
// an orchestrator never calls PodsComplete.
//
// A pod's directories that only one plugin uses are removed after its volume. If a manager is killed in between, they
// have no record. They are removed with the last volume of the pod or, if none is left, when the pod is removed again.

// PodAdded records that a pod was added.
func (r *Recovery) PodAdded(podName volume.UniquePodName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.removed, podName)
}

// PodRemoved records that a pod was removed. When the desired state no longer has its volumes, call ForgetRemoval and
// RemoveDirsAfterRead.
func (r *Recovery) PodRemoved(podName volume.UniquePodName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.podsComplete {
		r.removals++
		r.removed[podName] = r.removals
	}
	if r.rebuilding {
		r.removedEarly[podName] = struct{}{}
	}
}

// MayUseVolumes reports whether the volumes of a pod that is not on the node are unknown, because the pod may still be
// added.
func (r *Recovery) MayUseVolumes(podName volume.UniquePodName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, removed := r.removed[podName]
	return !r.podsComplete && !removed
}

// wasRemovedEarly reports whether a pod was removed before the restart's volumes were all known.
func (r *Recovery) wasRemovedEarly(podName volume.UniquePodName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, removedEarly := r.removedEarly[podName]
	return removedEarly
}

// ForgetRemoval forgets that a pod was removed when nothing is left of it.
func (r *Recovery) ForgetRemoval(podName volume.UniquePodName) {
	r.mu.Lock()
	removal, removed := r.removed[podName]
	isRead := r.isRead
	r.mu.Unlock()
	// Running operations are read first: the actual state shows an operation's result before the operation ends. No
	// operation starts for the pod any more, unless it is added again; its next removal is then another one.
	if !removed || !isRead || r.options.IsBusy(podName) || len(r.options.Actual.GetVolumeNamesForPod(podName)) > 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.removed[podName] == removal {
		delete(r.removed, podName)
	}
}

// RemoveDirsAfterRead removes the directories of a removed pod that has no known volume. If the records were not read yet, it
// does so afterwards.
func (r *Recovery) RemoveDirsAfterRead(podName volume.UniquePodName) {
	r.mu.Lock()
	later := r.options.Journal != nil && !r.isRead
	if later {
		r.dirsAfterRead[podName] = struct{}{}
	}
	r.mu.Unlock()
	if !later && !r.options.IsBusy(podName) {
		r.RemoveDirs(podName)
	}
}

// RemoveDirs removes the remaining directories of a pod without known volumes.
func (r *Recovery) RemoveDirs(podName volume.UniquePodName) {
	if len(r.options.Actual.GetVolumeNamesForPod(podName)) > 0 || r.options.IsKnown(podName) {
		return
	}
	r.options.Orphans.RemoveEmptyPodDirs(types.UID(podName))
}

// endRead forgets the pods that were removed before the records were read, and removes their directories. After that it wakes the
// waiters for the records.
func (r *Recovery) endRead() {
	r.mu.Lock()
	r.isRead = true
	removed, dirsAfterRead := slices.Collect(maps.Keys(r.removed)), slices.Collect(maps.Keys(r.dirsAfterRead))
	r.dirsAfterRead = nil
	r.mu.Unlock()
	for _, podName := range removed {
		r.ForgetRemoval(podName)
	}
	for _, podName := range dirsAfterRead {
		r.RemoveDirsAfterRead(podName)
	}
}
