package recovery

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// A pod that was removed before all pods had been added is remembered as long as anything is, or may be, left of it. Its
// set-ups are then known to be unwanted. It is forgotten with the last of them: the list does not grow for ever if an
// orchestrator never calls PodsComplete.
//
// The directories of a pod that only one plugin uses go after its volume. A manager that is killed in between leaves them
// without a record. They go with the last volume of the pod or, if none is left, when the pod is removed once more.

// PodAdded records that a pod was added.
func (r *Recovery) PodAdded(podName volume.UniquePodName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.released, podName)
}

// PodRemoved records that a pod was removed. Call Settle and Sweep when its volumes are wanted no more.
func (r *Recovery) PodRemoved(podName volume.UniquePodName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.podsComplete {
		r.removals++
		r.released[podName] = r.removals
	}
	if r.rebuilding {
		r.outlived[podName] = struct{}{}
	}
}

// MayUseVolumes reports whether it is not known which volumes a pod uses that is not on the node: it may still be added.
func (r *Recovery) MayUseVolumes(podName volume.UniquePodName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, released := r.released[podName]
	return !r.podsComplete && !released
}

// isOutlived reports whether a pod was removed before all that a restart left was known.
func (r *Recovery) isOutlived(podName volume.UniquePodName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, outlived := r.outlived[podName]
	return outlived
}

// Settle forgets that a pod was removed when nothing is left of it.
func (r *Recovery) Settle(podName volume.UniquePodName) {
	r.mu.Lock()
	removal, released := r.released[podName]
	isRead := r.isRead
	r.mu.Unlock()
	// What runs is looked at first: the actual state learns of it before it has ended. No operation begins for the pod
	// any more, but after it was added again, which makes the next removal another one.
	if !released || !isRead || r.options.IsBusy(podName) || len(r.options.Actual.GetVolumeNamesForPod(podName)) > 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.released[podName] == removal {
		delete(r.released, podName)
	}
}

// Sweep removes the directories of a removed pod that has no known volume. It waits until the records were read.
func (r *Recovery) Sweep(podName volume.UniquePodName) {
	r.mu.Lock()
	later := r.options.Journal != nil && !r.isRead
	if later {
		r.unswept[podName] = struct{}{}
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
	r.options.Orphans.Sweep(types.UID(podName))
}

// endRead settles and sweeps the pods that were removed before the records were read. After that it wakes the waiters for
// the records.
func (r *Recovery) endRead() {
	r.mu.Lock()
	r.isRead = true
	released, unswept := slices.Collect(maps.Keys(r.released)), slices.Collect(maps.Keys(r.unswept))
	r.unswept = nil
	r.mu.Unlock()
	for _, podName := range released {
		r.Settle(podName)
	}
	for _, podName := range unswept {
		r.Sweep(podName)
	}
}
