package volumemanager

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/health"
	"github.com/volumekit/volumekit/volumemanager/internal/mountwatch"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
	"github.com/volumekit/volumekit/volumemanager/internal/reconciler"
)

// HungUnmount says what the manager does if the plugin's TearDown or UnmountDevice hangs: the call has not returned by its deadline (see
// operationexecutor.Timeouts). The zero value does nothing: the volume stays, and the status says which call hangs, and since when. It
// needs a *mount.Mounter as [Options].Mounter.
//
// The manager unmounts only a mount that it has made, or that is on record, at the recorded path. After an abort, the hanging call
// usually fails and returns. The manager then calls TearDown again, which finds nothing mounted. After a detach, or if the mount has
// left the mount table in another way, the call may continue to hang. The pod counts as gone all the same. The plugin undoes the rest
// when the call returns.
type HungUnmount struct {
	// ForceAfter is the time from the begin of a hanging call until the manager aborts the mount (MNT_FORCE). Every process that
	// waits for the server then gets an error, and data that was not written yet is lost. Local filesystems cannot be aborted. Zero
	// means never.
	ForceAfter time.Duration
	// LazyAfter is the time from the begin of a hanging call until the manager detaches the mount (MNT_DETACH), if an abort has not
	// helped or is not allowed. If the server comes back, the kernel may still write the data; otherwise it is lost. Zero means never.
	LazyAfter time.Duration
}

// EventHungVolumeUnmounted is the reason of the event for a volume that the manager has unmounted while a plugin's call hangs.
const EventHungVolumeUnmounted = mountwatch.EventHungVolumeUnmounted

func (h HungUnmount) check() error {
	if h.ForceAfter < 0 || h.LazyAfter < 0 {
		return fmt.Errorf("HungUnmount %+v: give times that are not negative: %w", h, volume.ErrInvalid)
	}
	return nil
}

// HungError is the cause of a condition with [ReasonHung] if a plugin's call hangs.
type HungError struct {
	// Call is the call.
	Call operationexecutor.HungCall
}

// Error names the call.
func (e *HungError) Error() string { return e.Call.String() + " does not return" }

// hungConditions returns the conditions for hung calls on a volume that concern the pod.
func hungConditions(executor *operationexecutor.Executor, h podvolume.Key) []Condition {
	return hungCallsOf(executor, h.Volume, func(o operationexecutor.OperationInfo) bool { return o.PodName == "" || o.PodName == h.Pod })
}

// hungBefore returns the hung calls for other pods that delay a volume which the pod does not have yet. Teardowns for other
// pods do not delay it.
func hungBefore(executor *operationexecutor.Executor, h podvolume.Key) []Condition {
	return hungCallsOf(executor, h.Volume, func(o operationexecutor.OperationInfo) bool {
		return o.PodName != "" && o.PodName != h.Pod && reconciler.FilesystemKind(o.Kind) != operationexecutor.OpUnmount
	})
}

func hungCallsOf(executor *operationexecutor.Executor, name v1.UniqueVolumeName, counts func(operationexecutor.OperationInfo) bool) []Condition {
	var found []Condition
	for _, call := range executor.Hung() {
		if call.Operation.VolumeName == name && counts(call.Operation) {
			c := Condition(health.Abnormal(health.Hung, &HungError{Call: call}))
			c.Since = call.Since
			found = append(found, c)
		}
	}
	return found
}

// isGone reports whether nothing is, may be or is being set up for a pod. A volume that was unmounted while its teardown hangs does not
// count.
func (n *nodeView) isGone(podName volume.UniquePodName) bool {
	for _, name := range n.reconciler.VolumesOfOperations(podName) {
		if !n.watch.IsReleased(podvolume.Key{Volume: name, Pod: podName}) {
			return false
		}
	}
	for mounted := range n.actual.VolumesOfPod(podName) {
		if !n.watch.IsReleased(podvolume.Key{Volume: mounted.VolumeName, Pod: podName}) {
			return false
		}
	}
	return true
}
