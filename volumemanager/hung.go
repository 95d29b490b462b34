package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/health"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
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
	// ForceAfter is how long after its begin a call that hangs is ended by aborting the mount (MNT_FORCE): everybody who
	// waits for the server gets an error, and what was not written yet is lost. Local filesystems cannot be aborted. Zero
	// never does.
	ForceAfter time.Duration
	// LazyAfter is how long after its begin the mount is detached (MNT_DETACH) when that has not helped, or is not allowed.
	// The server may come back and get what was not written, or never. Zero never does.
	LazyAfter time.Duration
}

// EventHungVolumeUnmounted is the reason of the event about a volume that is taken off beside a call that hangs.
const EventHungVolumeUnmounted = "HungVolumeUnmounted"

const (
	// hungPatience is how long a plain unmount is tried once more before the force.
	hungPatience = 100 * time.Millisecond
	// hungTimeout bounds one attempt, hungPause is the time between two.
	hungTimeout = 10 * time.Second
	hungPause   = 10 * time.Second
)

func (h HungUnmount) check() error {
	if h.ForceAfter < 0 || h.LazyAfter < 0 {
		return fmt.Errorf("HungUnmount %+v: give times that are not negative: %w", h, volume.ErrInvalid)
	}
	return nil
}

func (h HungUnmount) isSet() bool { return h.ForceAfter > 0 || h.LazyAfter > 0 }

// next returns what may be done to a call that has been hanging since that time, and when there is more; zero when there is
// not.
func (h HungUnmount) next(since time.Time) (now mount.UnmountOptions, more time.Time) {
	age := time.Since(since)
	if h.ForceAfter > 0 {
		if age < h.ForceAfter {
			more = since.Add(h.ForceAfter)
		} else {
			now.Force = hungPatience
		}
	}
	if h.LazyAfter > 0 {
		if age >= h.LazyAfter {
			now.Lazy = true
		} else if at := since.Add(h.LazyAfter); more.IsZero() || at.Before(more) {
			more = at
		}
	}
	return now, more
}

// callsLeft is told by the executor of an operation that has ended while calls of it still run.
func (m *Manager) callsLeft(o operationexecutor.OperationInfo) {
	if m.options.HungUnmount.isSet() && isTeardownOf(o.Kind) {
		m.hung.Add(podvolume.Key{Volume: o.VolumeName, Pod: o.PodName})
	}
}

func isTeardownOf(kind operationexecutor.OperationKind) bool {
	return kind == operationexecutor.OpUnmount || kind == operationexecutor.OpUnmountDevice
}

// endHung starts what takes off mounts whose teardown hangs, where the options allow it.
func (m *Manager) endHung(ctx context.Context, wg *sync.WaitGroup) {
	kernel, ok := m.options.Mounter.(kernelMounts)
	if !ok || !m.options.HungUnmount.isSet() {
		return
	}
	wg.Go(func() {
		for {
			h, ok := m.hung.Get(ctx)
			if !ok {
				return
			}
			m.endHungOf(ctx, kernel, h)
		}
	})
}

// endHungOf takes off the mount of a volume if its teardown hangs and it is time.
func (m *Manager) endHungOf(ctx context.Context, kernel kernelMounts, h podvolume.Key) {
	own := m.mounts.leavingOf(h)
	if own == nil {
		return
	}
	call, ok := m.hungTeardown(h)
	if !ok {
		return
	}
	if hasLeftTable(ctx, kernel, own) {
		m.options.Logger.Info("a volume whose teardown hangs is mounted no more", "volume", own.Volume, "pod", own.Pod, "path", own.path, "call", call.String())
		m.letGo(own)
		return
	}
	options, more := m.options.HungUnmount.next(call.Since)
	if options != (mount.UnmountOptions{}) {
		options.Expect = own.expect()
		if m.takeOffHung(ctx, kernel, own, call, options) {
			return
		}
		if more.IsZero() {
			more = time.Now().Add(hungPause)
		}
	}
	if !more.IsZero() {
		m.hung.AddAt(h, more)
	}
}

// hasLeftTable reports whether the kernel says that a mount is there no more, wherever it was.
func hasLeftTable(ctx context.Context, kernel mountLooker, own *ownMount) bool {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if own.uniqueID != 0 {
		_, err := kernel.LookupID(ctx, own.uniqueID)
		return errors.Is(err, mount.ErrNotMounted)
	}
	_, err := kernel.Lookup(ctx, own.path)
	return errors.Is(err, mount.ErrNotMounted)
}

// letGo counts a volume as gone that is mounted no more while its teardown hangs.
func (m *Manager) letGo(own *ownMount) {
	m.health.Report(own.Key, health.TakingOff, nil)
	m.mounts.letGo(own)
	m.changes.Notify(own.Pod)
}

// takeOffHung takes a mount off, and reports whether it is gone.
func (m *Manager) takeOffHung(ctx context.Context, kernel mountEnder, own *ownMount, call operationexecutor.HungCall, options mount.UnmountOptions) bool {
	ctx, cancel := context.WithTimeout(ctx, hungTimeout)
	defer cancel()
	how := "is detached"
	if options.Force > 0 {
		how = "is aborted"
	}
	m.health.Event(own.Key, v1.EventTypeWarning, EventHungVolumeUnmounted,
		fmt.Sprintf("what is mounted at %q %s, because of %v: data that was not written yet may be lost", own.path, how, call))
	err := kernel.UnmountHung(ctx, own.path, options)
	if err != nil && !errors.Is(err, mount.ErrNotMounted) {
		m.options.Logger.Error("a volume whose teardown hangs could not be taken off", "volume", own.Volume, "pod", own.Pod, "path", own.path, "error", err)
		m.health.Report(own.Key, health.TakingOff, []health.Condition{health.Abnormal(health.NotTakenOff, fmt.Errorf("it could not be taken off beside %v: %w", call, err))})
		return false
	}
	m.letGo(own)
	return true
}

// hungTeardown returns the call that hangs while it takes a volume away.
func (m *Manager) hungTeardown(h podvolume.Key) (operationexecutor.HungCall, bool) {
	for _, call := range m.executor.Hung() {
		o := call.Operation
		if o.VolumeName == h.Volume && o.PodName == h.Pod && isTeardownOf(o.Kind) {
			return call, true
		}
	}
	return operationexecutor.HungCall{}, false
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

// hungBefore says which calls for other pods hang in the way of a volume that the pod does not have yet. What takes the
// volume from another pod is in nobody's way.
func hungBefore(executor *operationexecutor.Executor, h podvolume.Key) []Condition {
	return hungCallsOf(executor, h.Volume, func(o operationexecutor.OperationInfo) bool {
		return o.PodName != "" && o.PodName != h.Pod && kindOfFilesystem(o.Kind) != operationexecutor.OpUnmount
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
func (m *Manager) isGone(podName volume.UniquePodName) bool {
	for _, name := range m.changingOf(podName) {
		if !m.mounts.isLetGo(podvolume.Key{Volume: name, Pod: podName}) {
			return false
		}
	}
	for mounted := range m.actual.VolumesOfPod(podName) {
		if !m.mounts.isLetGo(podvolume.Key{Volume: mounted.VolumeName, Pod: podName}) {
			return false
		}
	}
	return true
}
