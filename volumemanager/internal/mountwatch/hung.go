package mountwatch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

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
	// hungPatience bounds the plain unmount that is tried before the forced one.
	hungPatience = 100 * time.Millisecond
	// hungTimeout bounds one attempt, hungPause is the time between two.
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

// CallsLeft is called by the executor for an operation that has ended while some of its calls still run.
func (w *Watch) CallsLeft(o operationexecutor.OperationInfo) {
	if w.options.HungUnmount.isSet() && isTeardownOf(o.Kind) {
		w.hung.Add(podvolume.Key{Volume: o.VolumeName, Pod: o.PodName})
	}
}

func isTeardownOf(kind operationexecutor.OperationKind) bool {
	return kind == operationexecutor.OpUnmount || kind == operationexecutor.OpUnmountDevice
}

// endHung starts the unmounting of mounts whose teardown hangs, if the options allow it.
func (w *Watch) endHung(ctx context.Context, wg *sync.WaitGroup) {
	if w.kernel == nil || !w.options.HungUnmount.isSet() {
		return
	}
	wg.Go(func() {
		for {
			h, ok := w.hung.Get(ctx)
			if !ok {
				return
			}
			w.endHungOf(ctx, w.kernel, h)
		}
	})
}

// endHungOf unmounts a volume if its teardown hangs and the time is due.
func (w *Watch) endHungOf(ctx context.Context, kernel kernelMounts, h podvolume.Key) {
	own := w.mounts.leavingOf(h)
	if own == nil {
		return
	}
	call, ok := w.hungTeardown(h)
	if !ok {
		return
	}
	if hasLeftTable(ctx, kernel, own) {
		w.options.Logger.Info("a volume whose teardown hangs is mounted no more", "volume", own.Volume, "pod", own.Pod, "path", own.path, "call", call.String())
		w.letGo(own)
		return
	}
	options, more := w.options.HungUnmount.next(call.Since)
	if options != (mount.UnmountOptions{}) {
		options.Expect = own.Expect()
		if w.takeOffHung(ctx, kernel, own, call, options) {
			return
		}
		if more.IsZero() {
			more = time.Now().Add(hungPause)
		}
	}
	if !more.IsZero() {
		w.hung.AddAt(h, more)
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

// letGo counts a volume as gone if it is no longer mounted while its teardown hangs.
func (w *Watch) letGo(own *Mount) {
	w.options.Health.Report(own.Key, health.TakingOff, nil)
	w.mounts.letGo(own)
	w.options.LetGo(own.Key)
}

// takeOffHung unmounts a mount, and reports whether it is gone.
func (w *Watch) takeOffHung(ctx context.Context, kernel mountEnder, own *Mount, call operationexecutor.HungCall, options mount.UnmountOptions) bool {
	ctx, cancel := context.WithTimeout(ctx, hungTimeout)
	defer cancel()
	how := "is detached"
	if options.Force > 0 {
		how = "is aborted"
	}
	w.options.Health.Event(own.Key, v1.EventTypeWarning, EventHungVolumeUnmounted,
		fmt.Sprintf("what is mounted at %q %s, because of %v: data that was not written yet may be lost", own.path, how, call))
	err := kernel.UnmountHung(ctx, own.path, options)
	if err != nil && !errors.Is(err, mount.ErrNotMounted) {
		w.options.Logger.Error("a volume whose teardown hangs could not be taken off", "volume", own.Volume, "pod", own.Pod, "path", own.path, "error", err)
		w.options.Health.Report(own.Key, health.TakingOff, []health.Condition{health.Abnormal(health.NotTakenOff, fmt.Errorf("it could not be taken off beside %v: %w", call, err))})
		return false
	}
	w.letGo(own)
	return true
}

// hungTeardown returns the hung call of a volume's teardown.
func (w *Watch) hungTeardown(h podvolume.Key) (operationexecutor.HungCall, bool) {
	for _, call := range w.options.Hung() {
		o := call.Operation
		if o.VolumeName == h.Volume && o.PodName == h.Pod && isTeardownOf(o.Kind) {
			return call, true
		}
	}
	return operationexecutor.HungCall{}, false
}
