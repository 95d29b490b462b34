package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/cache"
)

// lifecycle records whether Run was called, works and has ended, and whether Stop was called. Make it with newLifecycle.
type lifecycle struct {
	started, running atomic.Bool
	// stopping is given when nothing is to be attached, staged or set up any more. ending is given when Run is to return.
	stopping, ending signal
	// stopped is closed when Run ends.
	stopped chan struct{}
	// failed is why Run could not begin. It is written before stopped is closed, and read only after that.
	failed error
}

func newLifecycle() *lifecycle {
	return &lifecycle{stopping: newSignal(), ending: newSignal(), stopped: make(chan struct{})}
}

// isStopping reports whether Stop was called.
func (l *lifecycle) isStopping() bool { return isOpen(l.stopping.given) }

// wait returns when Run has returned, if it was called.
func (l *lifecycle) wait() {
	if l.started.Load() {
		<-l.stopped
	}
}

// stoppedError returns the error of a wait that ended because Run has ended. It says why, if Run could not begin. Call it only
// after stopped was closed.
func (l *lifecycle) stoppedError() error {
	if l.failed == nil {
		return ErrStopped
	}
	return fmt.Errorf("%w, because Run could not begin: %w", ErrStopped, l.failed)
}

// signal is a channel that is closed once, by any goroutine.
type signal struct {
	given <-chan struct{}
	give  func()
}

func newSignal() signal {
	c := make(chan struct{})
	return signal{given: c, give: sync.OnceFunc(func() { close(c) })}
}

// cancelAtEnd ends the context of Run when Stop has come to its end.
func (l *lifecycle) cancelAtEnd(ctx context.Context, cancel context.CancelFunc) {
	select {
	case <-l.ending.given:
		cancel()
	case <-ctx.Done():
	}
}

// Stop ends the manager, and returns when Run has returned. From now on nothing is attached, staged, set up or grown. What
// runs is waited for, and what no pod wants is taken away; the volumes of pods that were not removed stay as they are. It is
// the way to end a program: to end the context of Run cancels a teardown in the midst and leaves the rest of it for the next
// manager.
//
// When ctx ends before that, or [Options].WaitTimeout has passed and ctx has no deadline, Run is ended as by its own context,
// and the error is a [*volume.NotReadyError] that names each volume that is left. A manager whose Run was not called is ended,
// too: Run returns at once then. Stop may be called several times and from several goroutines.
func (m *Manager) Stop(ctx context.Context) error {
	m.run.stopping.give()
	defer m.run.wait()
	defer m.run.ending.give()
	if !m.run.started.Load() {
		return nil
	}
	m.reconciler.AddAll(m.view.allVolumes())
	var remaining v1.UniqueVolumeName
	err := m.wait(ctx, &v1.Pod{}, awaited{
		state: "gone",
		known: m.recovery.AllKnown(),
		isReady: func() (bool, error) {
			// As long as one volume is known to be left, it is enough to look at that one.
			if !m.reconciler.IsQuiet() || remaining != "" && m.view.isUnwanted(remaining) {
				return false, nil
			}
			remaining = m.view.firstUnwanted()
			return remaining == "", nil
		},
		missing: func() []VolumeStatus {
			return slices.DeleteFunc(m.Status().Volumes, func(s VolumeStatus) bool { return s.Wanted || !m.view.isUnwanted(s.Volume) })
		},
	})
	if errors.Is(err, ErrStopped) && m.reconciler.IsQuiet() && m.view.firstUnwanted() == "" {
		return nil
	}
	return err
}

// firstUnwanted returns a volume that has to be torn down, unstaged or detached; empty if there is none.
func (n *nodeView) firstUnwanted() v1.UniqueVolumeName {
	for _, name := range n.actual.GetVolumeNames() {
		if n.isUnwanted(name) {
			return name
		}
	}
	return ""
}

// isUnwanted reports whether a volume is on the node, or set up for a pod, and is known not to be wanted any more.
func (n *nodeView) isUnwanted(name v1.UniqueVolumeName) bool {
	if !n.actual.VolumeExists(name) {
		return false
	}
	wanted := n.desired.VolumeExists(name)
	mounts := n.actual.GetPossiblyMountedVolumesForVolume(name)
	isUnwanted := func(mounted cache.MountedVolume) bool {
		return !n.populator.Uses(mounted.PodName, name) && !n.populator.MayUse(mounted.PodName)
	}
	return slices.ContainsFunc(mounts, isUnwanted) || !wanted && len(mounts) == 0 && !n.recovery.MayBeWanted(name)
}
