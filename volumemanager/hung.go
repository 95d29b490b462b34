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

// HungUnmount says what is done about a volume that is to be taken away and whose plugin's TearDown, or UnmountDevice, hangs:
// it has not returned by its deadline (see operationexecutor.Timeouts). The zero value does nothing: the volume stays, and the
// status says which call hangs since when. It needs a *mount.Mounter as [Options].Mounter.
//
// Only the mount that this manager has made, or found on record, at the recorded path is touched. Where it was aborted, the
// call fails and returns as a rule, and the plugin's TearDown is called again, which finds nothing mounted. Where it was
// detached, or has left the mount table while the call goes on, the call may hang on; the pod counts as gone all the same, and
// what else the plugin has to undo is undone when the call returns.
type HungUnmount struct {
	// ForceAfter is how long after its begin the manager ends a call that hangs by aborting the mount (MNT_FORCE): every
	// process that waits for the server gets an error, and data that was not written yet is lost. Local filesystems cannot
	// be aborted. Zero means never.
	ForceAfter time.Duration
	// LazyAfter is how long after its begin the mount is detached (MNT_DETACH) when that has not helped, or is not allowed.
	// The server may come back and get what was not written, or never. Zero never does.
	LazyAfter time.Duration
}

// EventHungVolumeUnmounted is the reason of the event about a volume that is taken off beside a call that hangs.
const EventHungVolumeUnmounted = mountwatch.EventHungVolumeUnmounted

func (h HungUnmount) check() error {
	if h.ForceAfter < 0 || h.LazyAfter < 0 {
		return fmt.Errorf("HungUnmount %+v: give times that are not negative: %w", h, volume.ErrInvalid)
	}
	return nil
}

// HungError is the cause of a condition with [ReasonHung] that is about a call of a plugin.
type HungError struct {
	// Call is the call.
	Call operationexecutor.HungCall
}

// Error names the call.
func (e *HungError) Error() string { return e.Call.String() + " does not return" }

// hungConditions says which calls on a volume hang, as far as the pod is concerned.
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

// isGone reports whether nothing is, or may be, set up for a pod, or is being set up; but for what was taken off while its
// teardown hangs on.
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
