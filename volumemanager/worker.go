package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
	"github.com/volumekit/volumekit/volumemanager/internal/retry"
)

// worker carries volumes of one plugin, one after the other, as far as they go. It runs their operations in its own goroutine.
type worker struct {
	m        *Manager
	executor *operationexecutor.Executor

	// What the worker is about to begin. Only its goroutine uses that.
	look    volumeLook
	running *runningOperation
	left    []podvolume.Key // what is to be looked at after it

	// volumeQueue.mu guards what follows.

	plugin *pluginQueue
	volume v1.UniqueVolumeName // which it has; empty: none
	op     *operationexecutor.Operation
	// stuck says that it is in a call that takes long, abandoned that it is in one that may never return.
	stuck, abandoned bool
}

// work carries volumes until there are none to be carried.
func (m *Manager) work(ctx context.Context, w *worker) {
	ctx, cancel := context.WithCancel(ctx) // Workers do not wait for one another to make contexts for their calls.
	defer cancel()
	w.m, w.executor = m, m.executor.Synchronous(w)
	defer func() {
		if w.running != nil { // A call of the plugin has ended the goroutine.
			w.ended(w.running.volume)
		}
		m.volumes.leave(w)
	}()
	for {
		name, ok := m.volumes.take(w)
		if !ok {
			return
		}
		w.carry(ctx, name)
	}
}

// carry does all that is to be done about a volume now: it looks, plans, does what comes first, and looks again. What has to
// wait is marked when it need not wait any more.
func (w *worker) carry(ctx context.Context, name v1.UniqueVolumeName) {
	for {
		pod, ok := w.m.volumes.next(w)
		if !ok {
			return
		}
		if actions := w.m.plan(&w.look, name, pod); !w.do(ctx, &w.look, actions) {
			return
		}
	}
}

// plan looks at what a volume is to a pod, or at all of it when there is no pod, and returns what is to be done.
func (m *Manager) plan(v *volumeLook, name v1.UniqueVolumeName, pod volume.UniquePodName) []action {
	m.planned.Add(1)
	m.look(v, name, pod)
	actions := plan(v.view)
	if v.pod != "" && m.concernsAll(name, actions) {
		m.look(v, name, "")
		actions = plan(v.view)
	}
	if v.view.pending {
		m.lookWhenFree(podvolume.Key{Volume: name, Pod: v.pod})
	}
	m.exchange.planned(v)
	m.growth.watch(v)
	actions = m.stopping.permitted(actions)
	m.noteWaits(v, actions)
	m.changes.Tell(v.topic())
	return actions
}

// concernsAll reports whether what was planned for one pod depends on the others: it is about the volume as a whole, or it is
// nothing, and the volume may have to grow, which comes when there is nothing else to be done.
func (m *Manager) concernsAll(name v1.UniqueVolumeName, actions []action) bool {
	return slices.ContainsFunc(actions, func(a action) bool { return a.pod == "" }) || len(actions) == 0 && m.growth.isGrowing(name)
}

// do does the first action that can be begun. It returns false when another worker has the volume now.
func (w *worker) do(ctx context.Context, v *volumeLook, actions []action) bool {
	for i, a := range actions {
		w.left = w.left[:0]
		for _, later := range actions[i+1:] {
			w.left = append(w.left, podvolume.Key{Volume: v.name, Pod: later.pod})
		}
		if w.begin(ctx, v, a) {
			return w.ended(v.name)
		}
	}
	return true
}

// begin does one action, and returns when it has ended. It returns false when the action did not begin.
func (w *worker) begin(ctx context.Context, v *volumeLook, a action) bool {
	m := w.m
	if t, ok := m.refusal(v.name, a.verb); ok {
		m.note(podvolume.Key{Volume: v.name, Pod: a.pod}, t)
		m.volumes.AddAt(podvolume.Key{Volume: v.name}, t.until)
		return false
	}
	if a.verb == verbForget {
		m.forget(v.name)
		m.exchange.forgot(v.name)
		return false
	}
	if err := m.prove(v.name); err != nil {
		m.note(podvolume.Key{Volume: v.name, Pod: a.pod}, trouble{err: err}) // A change of the plugins, and the resync, mark the volume.
		return false
	}
	if a.verb == verbMount && m.reuse(ctx, v, a.pod) {
		m.volumes.Add(podvolume.Key{Volume: v.name, Pod: a.pod}) // It may have to grow.
		return false
	}
	if w.running = m.enter(v, a); w.running == nil {
		return false
	}
	if err := w.start(ctx, v, a); err != nil {
		m.takeOut(w.running)
		w.running = nil
		m.didNotBegin(v, a, err)
		return false
	}
	return true
}

// Began implements operationexecutor.Worker. An operation for one pod leaves the volume to other workers.
func (w *worker) Began(op *operationexecutor.Operation) {
	w.m.setRunning(w.running, op)
	if w.running.whole {
		w.m.volumes.begin(w, op, w.left)
		return
	}
	w.m.volumes.beginForPod(w, op, w.left)
}

// Slow implements operationexecutor.Worker.
func (w *worker) Slow(op *operationexecutor.Operation) { w.m.volumes.slow(w, op) }

// Abandoned implements operationexecutor.Worker.
func (w *worker) Abandoned(op *operationexecutor.Operation) { w.m.volumes.abandoned(w, op) }

// ended goes on with the volume of an operation that has ended. It returns false when another worker has the volume.
func (w *worker) ended(name v1.UniqueVolumeName) bool {
	var look []podvolume.Key
	if w.m.mustLookAgain(w.running) {
		look = append(look, toLookAt(w.running.op.Info()))
	}
	w.running = nil
	return w.m.volumes.end(w, name, look)
}

// start runs the operation of one action.
func (w *worker) start(ctx context.Context, v *volumeLook, a action) (err error) {
	m := w.m
	switch a.verb {
	case verbUnmount:
		_, err = w.executor.UnmountVolume(ctx, v.mounted(a.pod), m.actual)
	case verbAttach:
		_, err = w.executor.AttachVolume(ctx, v.toAttach(m.node()), m.actual)
	case verbVerify:
		_, err = w.executor.VerifyControllerAttachedVolume(ctx, v.anyWanted(), m.node(), m.actual)
	case verbMount, verbRemount:
		err = w.mount(ctx, v, a)
	case verbExpand:
		_, err = w.executor.ExpandInUseVolume(ctx, v.toMount(a.pod), m.actual, v.actual.ClaimSize)
	case verbUnmountDevice:
		_, err = w.executor.UnmountDevice(ctx, v.actual.AttachedVolume.AttachedVolume, m.actual)
	default:
		_, err = w.executor.DetachVolume(ctx, v.actual.AttachedVolume.AttachedVolume, operationexecutor.DetachOptions{}, m.actual)
	}
	return err
}

// mount sets a volume up for a pod, or maps it.
func (w *worker) mount(ctx context.Context, v *volumeLook, a action) error {
	row := v.toMount(a.pod)
	if !row.PluginIsAttachable && !v.known {
		if err := w.m.actual.MarkVolumeAsAttached(v.name, row.VolumeSpec, w.m.node(), ""); err != nil {
			return err
		}
	}
	_, err := w.executor.MountVolume(ctx, row, operationexecutor.MountOptions{IsRemount: a.verb == verbRemount}, w.m.actual)
	return err
}

// didNotBegin notes why an operation did not begin, and sees to it that it is tried again.
func (m *Manager) didNotBegin(v *volumeLook, a action, err error) {
	var pending *volume.PendingError
	var missing *operationexecutor.MountPreconditionError
	var backoff *volume.BackoffError
	h := podvolume.Key{Volume: v.name, Pod: a.pod}
	switch {
	case errors.As(err, &backoff):
		m.note(h, trouble{err: backoff.Err, attempts: backoff.Attempts, until: backoff.Until})
		if a.verb != verbExpand || !m.growth.awaits(v, backoff.Err) {
			m.volumes.AddAt(h, backoff.Until)
		}
	case errors.As(err, &missing):
		// The change of the node's status that is waited for marks the volume.
		m.note(h, trouble{err: m.exchange.explain(missing)})
	case errors.As(err, &pending):
		m.lookWhenFree(h) // The trouble before, if any, stays.
	default:
		until := retry.At(1)
		m.note(h, trouble{err: err, attempts: 1, until: until})
		m.volumes.AddAt(h, until)
	}
}

// forget drops a volume of which nothing is left.
func (m *Manager) forget(name v1.UniqueVolumeName) {
	err := m.actual.DeleteVolume(name)
	m.forgot(name, err)
	if err != nil {
		m.volumes.Add(podvolume.Key{Volume: name})
		return
	}
	m.executor.Forget(name)
	if m.desired.VolumeExists(name) {
		m.volumes.Add(podvolume.Key{Volume: name}) // A pod wants it in another way.
	}
}

// forgot notes whether the actual state forgot a volume of which nothing is left. When it did not, the two disagree about
// what is left, and what was done must not be done again at once.
func (m *Manager) forgot(name v1.UniqueVolumeName, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		delete(m.refusals, name)
		delete(m.unproven, name)
		return
	}
	attempts := m.refusals[name].attempts + 1
	err = fmt.Errorf("nothing is left of volume %q, but it cannot be forgotten: %w", name, err)
	m.refusals[name] = trouble{err: err, attempts: attempts, until: retry.At(attempts)}
}

// refusal returns why the last step of a volume has to wait. Any other step ends that.
func (m *Manager) refusal(name v1.UniqueVolumeName, v verb) (trouble, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t, ok := m.refusals[name]
	switch {
	case !ok:
		return t, false
	case v != verbDetach && v != verbForget:
		delete(m.refusals, name)
		return t, false
	}
	return t, !isPast(t.until)
}
