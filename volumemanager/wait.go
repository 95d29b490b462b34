package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/populator"
)

// WaitForAttachAndMount returns when every volume that a container of pod uses is set up. The pod must have been added;
// otherwise the error matches [volume.ErrInvalid]. pod tells which pod is meant; its volumes are those of the last AddPod
// or UpdatePod. It is woken by the change that it waits for.
//
// When ctx ends, or [Options].WaitTimeout has passed and ctx has no deadline, or the pod is removed, or Run ends, the error
// is a [*volume.NotReadyError] that names each volume that is missing with its phase and its last real cause. No cause
// ends the wait early: what fails is tried again until then.
func (m *Manager) WaitForAttachAndMount(ctx context.Context, pod *v1.Pod) error {
	if pod == nil || m.populator.Pod(pod.UID) == nil {
		if err := populator.Validate(pod); err != nil {
			return err
		}
		return populator.Unknown(pod)
	}
	return m.wait(ctx, pod, awaited{
		state:   "ready",
		known:   m.recovery.RecordsRead(),
		isReady: func() (bool, error) { return m.view.isReady(pod.UID) },
		missing: func() []VolumeStatus {
			return slices.DeleteFunc(m.view.statusOfPod(pod.UID), func(s VolumeStatus) bool { return !s.Wanted || s.Phase == PhaseMounted })
		},
	})
}

// isReady reports whether every volume that a pod uses is set up.
func (n *nodeView) isReady(uid types.UID) (bool, error) {
	entry := n.populator.Pod(uid)
	if entry == nil {
		return false, ErrPodRemoved
	}
	for _, v := range entry.Volumes {
		if _, has := n.setUpOf(v.Name, volume.UniquePodName(uid)); !has {
			return false, nil
		}
	}
	return true, nil
}

// setUpOf returns the set-up of a volume for a pod, and false when it is not there, is being taken away, or is that of an
// earlier pod with the same UID.
func (n *nodeView) setUpOf(name v1.UniqueVolumeName, podName volume.UniquePodName) (cache.MountedVolume, bool) {
	if name == "" {
		return cache.MountedVolume{}, false
	}
	row, ok := n.actual.GetMountedVolume(name, podName)
	// In this order: the operation that takes it away is entered before the state changes.
	return row, ok && row.State == operationexecutor.VolumeMounted && row.IsFor(n.desired.Incarnation(name, podName)) && !n.reconciler.IsTearingDown(name, podName)
}

// WaitForUnmount returns when no volume is, or may be, set up for pod, and none is being set up. It is to be called
// after RemovePod, and works also for a pod that was never added: with records it waits until Run knows what an
// earlier manager left, from its records and, where these are missing, from its directories. Its error is that of [Manager.WaitForAttachAndMount]. What the node shares among pods may still
// be staged and attached then: see [Manager.WaitForNodeEmpty]. A mount, or the link to a device, that was found at the place of
// a volume of the pod and could not be rebuilt is not gone before it is taken away: see [NodeStatus].Orphans.
func (m *Manager) WaitForUnmount(ctx context.Context, pod *v1.Pod) error {
	if err := populator.Validate(pod); err != nil {
		return err
	}
	podName := volume.GetUniquePodName(pod)
	return m.wait(ctx, pod, awaited{
		state:   "gone",
		known:   m.recovery.AllKnown(),
		isReady: func() (bool, error) { return m.view.isGone(podName) && len(m.orphans.LiveOf(ctx, pod.UID)) == 0, nil },
		missing: func() []VolumeStatus {
			changing := m.reconciler.VolumesOfOperations(podName)
			left := slices.DeleteFunc(m.view.statusOfPod(pod.UID), func(s VolumeStatus) bool {
				return !slices.Contains(changing, s.Volume) &&
					m.actual.GetVolumeMountState(s.Volume, podName) == operationexecutor.VolumeNotMounted
			})
			return append(left, statusOfOrphans(m.orphans.LiveOf(ctx, pod.UID))...)
		},
	})
}

// WaitForNodeEmpty returns when no volume is, or may be, set up, staged or attached on this node, and no operation runs, as
// it is after every pod was removed. Its error is that of [Manager.WaitForAttachAndMount], without a pod.
func (m *Manager) WaitForNodeEmpty(ctx context.Context) error {
	// As long as one volume is known to be left, it is enough to look at that one.
	var remaining v1.UniqueVolumeName
	return m.wait(ctx, &v1.Pod{}, awaited{
		state: "gone",
		known: m.recovery.AllKnown(),
		isReady: func() (bool, error) {
			if !m.reconciler.IsQuiet() || m.actual.VolumeExists(remaining) {
				return false, nil
			}
			left := m.actual.GetAttachedVolumes()
			if len(left) > 0 {
				remaining = left[len(left)-1].VolumeName
			}
			return len(left) == 0 && len(m.orphans.Live(ctx)) == 0, nil
		},
		missing: func() []VolumeStatus {
			return append(m.Status().Volumes, statusOfOrphans(m.orphans.Live(ctx))...)
		},
	})
}

// WaitForAllPodsUnmount is WaitForUnmount for several pods, all within one time: it takes as long as the last of them. It
// waits for each of them, also when another one is not gone in time; the error is then all of theirs.
func (m *Manager) WaitForAllPodsUnmount(ctx context.Context, pods []*v1.Pod) error {
	ctx, cancel := m.options.withWaitTimeout(ctx)
	defer cancel()
	var errs []error
	for _, pod := range pods { // Who has gone while another one was waited for is not waited for.
		errs = append(errs, m.WaitForUnmount(ctx, pod))
	}
	return errors.Join(errs...)
}

// awaited is what a wait is for.
type awaited struct {
	// state is what the volumes are to be, as volume.NotReadyError says it.
	state string
	// isReady reports whether it is there; an error ends the wait.
	isReady func() (bool, error)
	// known is closed when not to know of anything means that it is not there; nil: it always does.
	known <-chan struct{}
	// missing returns the volumes that are missing.
	missing func() []VolumeStatus
}

// wait returns when what it waits for is there. It looks again after each change of the pod; of any pod when pod has no UID.
func (m *Manager) wait(ctx context.Context, pod *v1.Pod, what awaited) error {
	if ready, err := what.isReady(); ready && err == nil && isOpen(what.known) {
		return nil
	}
	ctx, cancelTimeout := m.options.withWaitTimeout(ctx)
	defer cancelTimeout()
	changed, cancel := m.changes.Subscribe(volume.GetUniquePodName(pod))
	defer cancel()
	reading := what.known
	select {
	case <-reading:
		reading = nil
	default:
	}
	var ended error
	for {
		ready, err := what.isReady()
		switch {
		case err != nil:
			return notReady(pod, what, err)
		case ready && reading == nil:
			return nil
		case ended != nil:
			return m.endWait(pod, what, ended, reading)
		}
		select {
		case <-changed:
		case <-reading:
			reading = nil
		case <-ctx.Done():
			ended = context.Cause(ctx)
		case <-m.run.stopped:
			ended = m.run.stoppedError()
		}
	}
}

// isOpen reports whether a gate is open: nil is no gate.
func isOpen(gate <-chan struct{}) bool {
	if gate == nil {
		return true
	}
	select {
	case <-gate:
		return true
	default:
		return false
	}
}

// endWait returns the error of a wait that has ended, and none when what is missed has come in this moment.
func (m *Manager) endWait(pod *v1.Pod, what awaited, ended error, reading <-chan struct{}) error {
	switch {
	case !m.run.started.Load():
		ended = fmt.Errorf("nothing is done before Run is called: %w", ended)
	case reading != nil && !errors.Is(ended, ErrStopped):
		ended = fmt.Errorf("the records of an earlier manager have not been read yet: %w", ended)
	case what.state == "gone" && m.recovery.AwaitsPods():
		ended = fmt.Errorf("PodsComplete was not called, and nothing that an earlier manager left is undone before: %w", ended)
	}
	err := notReady(pod, what, ended)
	if len(err.Volumes) > 0 || reading != nil {
		return err
	}
	if ready, lost := what.isReady(); !ready || lost != nil {
		return err
	}
	return nil
}

// notReady returns the error of a wait that ended with volumes missing.
func notReady(pod *v1.Pod, what awaited, cause error) *volume.NotReadyError {
	err := &volume.NotReadyError{PodName: store.NameOf(pod), Awaited: what.state, Err: cause}
	for _, s := range what.missing() {
		v := volume.NotReadyVolume{
			OuterName: s.OuterName, Volume: s.Volume, Plugin: s.Plugin, Phase: string(s.Phase), Err: s.Err,
			Since: s.Since, Attempts: s.Attempts, NextTry: s.NextTry,
		}
		if call, hangs := s.HungCall(); hangs {
			v.HungCall, v.HungSince = call.Call, call.Since
		}
		if pod.UID == "" {
			v.PodName = s.PodName
		}
		err.Volumes = append(err.Volumes, v)
	}
	return err
}

// withWaitTimeout bounds what waits by WaitTimeout, if ctx has no deadline.
func (o Options) withWaitTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, o.WaitTimeout)
}
