package mountwatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/workqueue"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volumemanager/internal/health"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// HungUnmount configures the handling of a mount whose teardown hangs. It has the fields of volumemanager.HungUnmount.
type HungUnmount struct {
	// ForceAfter is the time after the begin of a hung call at which the mount is aborted; zero means never.
	ForceAfter time.Duration
	// LazyAfter is the time after the begin of a hung call at which the mount is detached; zero means never.
	LazyAfter time.Duration
}

// EventHungVolumeUnmounted is the reason of the event about a volume that was unmounted while its teardown hangs.
const EventHungVolumeUnmounted = "HungVolumeUnmounted"

const (
	// plainUnmountTimeout bounds the plain unmount that is tried before the forced one.
	plainUnmountTimeout = 100 * time.Millisecond
	// hungTimeout bounds one attempt. hungPause is the time between two attempts.
	hungTimeout = 10 * time.Second
	hungPause   = 10 * time.Second
)

func (h HungUnmount) isSet() bool { return h.ForceAfter > 0 || h.LazyAfter > 0 }

// next returns the steps that are due for a call that has been hanging since that time, and when the next one is due;
// zero if there is none.
func (h HungUnmount) next(since time.Time) (now mount.UnmountOptions, more time.Time) {
	age := time.Since(since)
	if h.ForceAfter > 0 {
		if age < h.ForceAfter {
			more = since.Add(h.ForceAfter)
		} else {
			now.Force = plainUnmountTimeout
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

// hungTeardowns unmounts volumes whose teardown hangs, as [HungUnmount] says. It knows which of them are due.
type hungTeardowns struct {
	options Options
	// kernel is nil if the mounter cannot list mounts. run is then not called.
	kernel kernelMounts
	mounts *mounts
	due    *workqueue.Queue[podvolume.Key]
}

// CallsAbandoned is called by the executor for an operation that has ended while some of its calls still run.
func (w *Watch) CallsAbandoned(o operationexecutor.OperationInfo) {
	if w.options.HungUnmount.isSet() && isTeardownOf(o.Kind) {
		w.hung.due.Add(podvolume.Key{Volume: o.VolumeName, Pod: o.PodName})
	}
}

func isTeardownOf(kind operationexecutor.OperationKind) bool {
	return kind == operationexecutor.OpUnmount || kind == operationexecutor.OpUnmountDevice
}

// run unmounts volumes whose teardown hangs until ctx ends.
func (t *hungTeardowns) run(ctx context.Context) {
	for {
		h, ok := t.due.Get(ctx)
		if !ok {
			return
		}
		t.end(ctx, h)
	}
}

// end unmounts a volume if its teardown hangs and the time is due.
func (t *hungTeardowns) end(ctx context.Context, h podvolume.Key) {
	own := t.mounts.leavingOf(h)
	if own == nil {
		return
	}
	call, ok := t.call(h)
	if !ok {
		return
	}
	if hasLeftTable(ctx, t.kernel, own) {
		t.options.Logger.Info("a volume whose teardown hangs is mounted no more", "volume", own.Volume, "pod", own.Pod, "path", own.path, "call", call.String())
		t.release(own)
		return
	}
	options, more := t.options.HungUnmount.next(call.Since)
	if options != (mount.UnmountOptions{}) {
		options.Expect = own.Expect()
		if t.unmount(ctx, own, call, options) {
			return
		}
		if more.IsZero() {
			more = time.Now().Add(hungPause)
		}
	}
	if !more.IsZero() {
		t.due.AddAt(h, more)
	}
}

// hasLeftTable reports whether the kernel confirms that a mount no longer exists at any path.
func hasLeftTable(ctx context.Context, kernel mountLooker, own *Mount) bool {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if own.UniqueID != 0 {
		_, err := kernel.LookupID(ctx, own.UniqueID)
		return errors.Is(err, mount.ErrNotMounted)
	}
	_, err := kernel.Lookup(ctx, own.path)
	return errors.Is(err, mount.ErrNotMounted)
}

// release counts a volume as gone: it is no longer mounted, although its teardown hangs.
func (t *hungTeardowns) release(own *Mount) {
	t.options.Health.Report(own.Key, health.TakingOff, nil)
	t.mounts.release(own)
	t.options.Released(own.Key)
}

// unmount unmounts a mount, and reports whether it is gone.
func (t *hungTeardowns) unmount(ctx context.Context, own *Mount, call operationexecutor.HungCall, options mount.UnmountOptions) bool {
	ctx, cancel := context.WithTimeout(ctx, hungTimeout)
	defer cancel()
	how := "is detached"
	if options.Force > 0 {
		how = "is aborted"
	}
	t.options.Health.Event(own.Key, v1.EventTypeWarning, EventHungVolumeUnmounted,
		fmt.Sprintf("what is mounted at %q %s, because of %v: data that was not written yet may be lost", own.path, how, call))
	err := t.kernel.UnmountHung(ctx, own.path, options)
	if err != nil && !errors.Is(err, mount.ErrNotMounted) {
		t.options.Logger.Error("a volume whose teardown hangs could not be taken off", "volume", own.Volume, "pod", own.Pod, "path", own.path, "error", err)
		t.options.Health.Report(own.Key, health.TakingOff, []health.Condition{health.Abnormal(health.NotTakenOff, fmt.Errorf("it could not be taken off beside %v: %w", call, err))})
		return false
	}
	t.release(own)
	return true
}

// call returns the hung call of a volume's teardown.
func (t *hungTeardowns) call(h podvolume.Key) (operationexecutor.HungCall, bool) {
	for _, call := range t.options.Hung() {
		o := call.Operation
		if o.VolumeName == h.Volume && o.PodName == h.Pod && isTeardownOf(o.Kind) {
			return call, true
		}
	}
	return operationexecutor.HungCall{}, false
}
