package reconciler

import (
	"context"
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
	"github.com/volumekit/volumekit/volumemanager/internal/retry"
)

// worker reconciles volumes of one plugin, one after the other. It runs their operations in its own goroutine.
type worker struct {
	*Reconciler
	executor *operationexecutor.Executor

	// What the worker is about to begin. Only its goroutine uses that.
	view    view
	current *operation
	later   []podvolume.Key // what is to be planned after it

	// queue.mu guards what follows.

	plugin *pluginQueue
	volume v1.UniqueVolumeName // which it has; empty: none
	op     *operationexecutor.Operation
	// stuck says that it is in a call that takes long, abandoned that it is in one that may never return.
	stuck, abandoned bool
}

// work reconciles volumes until the queue of the worker's plugin is empty.
func (r *Reconciler) work(ctx context.Context, w *worker) {
	ctx, cancel := context.WithCancel(ctx) // Workers do not wait for one another to make contexts for their calls.
	defer cancel()
	w.Reconciler, w.executor = r, r.executor.Synchronous(w)
	defer func() {
		w.goexited()
		r.queue.leave(w)
	}()
	for {
		name, ok := r.queue.take(w)
		if !ok {
			return
		}
		w.reconcile(ctx, name)
	}
}

// goexited goes on with the volume of a worker whose goroutine a plugin has ended (runtime.Goexit). Outside of an operation nothing else
// plans the volume again.
func (w *worker) goexited() {
	name := w.volume
	if w.current != nil && w.hasBegun(w.current) {
		w.ended(w.current.volume)
		return
	}
	if w.current != nil {
		w.removeOperation(w.current)
	}
	if name != "" {
		w.queue.AddAt(podvolume.Key{Volume: name}, retry.At(1))
	}
}

// reconcile does all that is to be done about a volume now: it plans, does what comes first, and plans again. What has to
// wait is added to the queue when it need not wait any more.
func (w *worker) reconcile(ctx context.Context, name v1.UniqueVolumeName) {
	for {
		pod, ok := w.queue.next(w)
		if !ok {
			return
		}
		w.planFor(&w.view, name, pod)
		if !w.do(ctx, &w.view) {
			return
		}
	}
}

// planFor reads what a volume is to a pod, or all of it when there is no pod, and plans what is to be done.
func (r *Reconciler) planFor(v *view, name v1.UniqueVolumeName, pod volume.UniquePodName) {
	r.planned.Add(1)
	r.read(v, name, pod)
	v.actions = v.inputs.plan(v.actions[:0])
	if v.pod != "" && r.concernsAll(name, v.actions) {
		r.read(v, name, "")
		v.actions = v.inputs.plan(v.actions[:0])
	}
	if v.inputs.pending {
		r.deferUntilFree(podvolume.Key{Volume: name, Pod: v.pod})
	}
	r.reportPlanned(v)
	if r.OnlyTearsDown() {
		v.actions = slices.DeleteFunc(v.actions, func(a action) bool { return !a.verb.isTeardown() })
	}
	r.noteWaits(v)
	r.Changes.Publish(topicOf(podvolume.Key{Volume: v.name, Pod: v.pod}))
}

// concernsAll reports whether what was planned for one pod depends on the others: it is about the volume as a whole, or it is
// nothing, and the volume may have to grow, which comes when there is nothing else to be done.
func (r *Reconciler) concernsAll(name v1.UniqueVolumeName, actions []action) bool {
	return slices.ContainsFunc(actions, func(a action) bool { return a.pod == "" }) || len(actions) == 0 && r.Expansions.IsExpanding(name)
}

// reportPlanned reports to the node's status whether the volume is used, and to the expansions whether it has to expand.
func (r *Reconciler) reportPlanned(v *view) {
	row := v.anyWanted() // All rows of a volume agree.
	r.Attachments.Planned(v.name, row.PluginIsAttachable || v.known && v.actual.PluginIsAttachable, row.PluginIsAttachable && !row.ReportedInUse)
	grows := slices.ContainsFunc(v.inputs.pods, func(p podView) bool { return p.expand })
	if grows || v.pod == "" { // That one pod needs nothing does not mean that none does.
		r.Expansions.Watch(v.name, v.claim(), grows)
	}
}

// do does the first action that can be begun. It returns false when another worker has the volume now.
func (w *worker) do(ctx context.Context, v *view) bool {
	for i, a := range v.actions {
		w.later = w.later[:0]
		for _, later := range v.actions[i+1:] {
			w.later = append(w.later, podvolume.Key{Volume: v.name, Pod: later.pod})
		}
		if w.begin(ctx, v, a) {
			return w.ended(v.name)
		}
	}
	return true
}

// begin does one action, and returns when it has ended. It returns false when no operation began.
func (w *worker) begin(ctx context.Context, v *view, a action) bool {
	h := podvolume.Key{Volume: v.name, Pod: a.pod}
	if f, ok := w.mustWait(v.name, a.verb); ok {
		w.fail(h, f)
		w.queue.AddAt(podvolume.Key{Volume: v.name}, f.Until)
		return false
	}
	if a.verb == verbForget {
		w.forget(v.name)
		w.Attachments.Forgot(v.name)
		return false
	}
	if err := w.Records.Prove(v.name); err != nil {
		w.fail(h, Failure{Err: err}) // A change of the plugins, and the resync, add the volume to the queue.
		return false
	}
	if a.verb == verbMount && w.reuse(ctx, v, a.pod) {
		w.queue.Add(h) // It may have to grow.
		return false
	}
	if w.current = w.enter(v, a); w.current == nil {
		return false
	}
	if err := w.start(ctx, v, a); err != nil {
		w.removeOperation(w.current)
		w.current = nil
		w.deferOperation(v, a, err)
		return false
	}
	return true
}

// reuse lets a pod use what a restart has found, as it is, and reports whether that can be.
func (r *Reconciler) reuse(ctx context.Context, v *view, pod volume.UniquePodName) bool {
	found := v.foundFor(pod)
	return found != nil && r.Records.Reuse(ctx, v.wantedBy(pod), found)
}

// Began implements operationexecutor.Worker. An operation for one pod leaves the volume to other workers.
func (w *worker) Began(op *operationexecutor.Operation) {
	w.begun(w.current, op)
	if w.current.Whole {
		w.queue.begin(w, op, w.later)
		return
	}
	w.queue.beginForPod(w, op, w.later)
}

// Slow implements operationexecutor.Worker.
func (w *worker) Slow(op *operationexecutor.Operation) { w.queue.slow(w, op) }

// Abandoned implements operationexecutor.Worker.
func (w *worker) Abandoned(op *operationexecutor.Operation) { w.queue.abandoned(w, op) }

// ended goes on with the volume of an operation that has ended. It returns false when another worker has the volume.
func (w *worker) ended(name v1.UniqueVolumeName) bool {
	var next []podvolume.Key
	if w.hasEnded(w.current) {
		next = append(next, podvolume.Key{Volume: name, Pod: affectedPod(w.current.Handle.Info())})
	}
	w.current = nil
	return w.queue.end(w, name, next)
}

// start runs the operation of one action.
func (w *worker) start(ctx context.Context, v *view, a action) (err error) {
	switch a.verb {
	case verbUnmount:
		_, err = w.executor.UnmountVolume(ctx, v.mounted(a.pod), w.Actual)
	case verbAttach:
		_, err = w.executor.AttachVolume(ctx, v.toAttach(w.Node), w.Actual)
	case verbVerify:
		_, err = w.executor.VerifyControllerAttachedVolume(ctx, v.anyWanted(), w.Node, w.Actual)
	case verbMount, verbRemount:
		err = w.mount(ctx, v, a)
	case verbExpand:
		_, err = w.executor.ExpandInUseVolume(ctx, v.toMount(a.pod), w.Actual, v.actual.ClaimSize)
	case verbUnmountDevice:
		_, err = w.executor.UnmountDevice(ctx, v.actual.AttachedVolume.AttachedVolume, w.Actual)
	default:
		_, err = w.executor.DetachVolume(ctx, v.actual.AttachedVolume.AttachedVolume, operationexecutor.DetachOptions{}, w.Actual)
	}
	return err
}

// mount sets a volume up for a pod, or maps it.
func (w *worker) mount(ctx context.Context, v *view, a action) error {
	row := v.toMount(a.pod)
	if !row.PluginIsAttachable && !v.known {
		if err := w.Actual.MarkVolumeAsAttached(v.name, row.VolumeSpec, w.Node, ""); err != nil {
			return err
		}
	}
	_, err := w.executor.MountVolume(ctx, row, operationexecutor.MountOptions{IsRemount: a.verb == verbRemount}, w.Actual)
	return err
}

// deferOperation records why an operation could not start, and schedules a retry.
func (r *Reconciler) deferOperation(v *view, a action, err error) {
	var pending *volume.PendingError
	var missing *operationexecutor.MountPreconditionError
	var backoff *volume.BackoffError
	h := podvolume.Key{Volume: v.name, Pod: a.pod}
	switch {
	case errors.As(err, &backoff):
		r.fail(h, Failure{Err: backoff.Err, Attempts: backoff.Attempts, Until: backoff.Until})
		if a.verb != verbExpand || !r.Expansions.Awaits(v.name, backoff.Err) {
			r.queue.AddAt(h, backoff.Until)
		}
	case errors.As(err, &missing):
		// The change of the node's status that is waited for adds the volume to the queue.
		r.fail(h, Failure{Err: r.Attachments.Explain(missing)})
	case errors.As(err, &pending):
		r.deferUntilFree(h) // The failure before, if any, stays.
	default:
		until := retry.At(1)
		r.fail(h, Failure{Err: err, Attempts: 1, Until: until})
		r.queue.AddAt(h, until)
	}
}

// forget drops a volume when nothing of it is left.
func (r *Reconciler) forget(name v1.UniqueVolumeName) {
	err := r.Actual.DeleteVolume(name)
	r.Forgot(name, err)
	if err != nil {
		r.queue.Add(podvolume.Key{Volume: name})
		return
	}
	r.executor.Forget(name)
	if r.Desired.VolumeExists(name) {
		r.queue.Add(podvolume.Key{Volume: name}) // A pod wants it in another way.
	}
}
