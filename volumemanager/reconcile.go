package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// volumeWork is what is known of the operations on one volume. The planner's goroutine makes a new one each time; what is
// in Manager.work does not change any more.
type volumeWork struct {
	// running holds the operations whose keys are not free yet.
	running []runningOperation
	// troubles says, for each pod and for the volume as a whole (no pod), why the next operation has to wait.
	troubles map[volume.UniquePodName]trouble
}

// note says why an operation for a pod, or for the volume as a whole, has to wait.
func (w *volumeWork) note(podName volume.UniquePodName, t trouble) {
	if w.troubles == nil {
		w.troubles = make(map[volume.UniquePodName]trouble, 1)
	}
	w.troubles[podName] = t
}

// runningOperation is an operation whose key is not free yet.
type runningOperation struct {
	op  *operationexecutor.Operation
	key operationexecutor.Key
	pod volume.UniquePodName // empty: it concerns the volume as a whole
}

// trouble is why an operation did not start.
type trouble struct {
	err      error
	attempts int
	until    time.Time
}

// subject is one volume as a plan is made for it: what is desired and what is known.
type subject struct {
	name v1.UniqueVolumeName
	// wanted are the pods that want the volume, those that asked first coming first; at tells the place of each.
	wanted []operationexecutor.VolumeToMount
	at     places
	known  bool
	actual cache.VolumeSnapshot
	// waits says of pods that want the volume in another way than it is here why they have to wait.
	waits map[volume.UniquePodName]error
}

// desk is what the planner's goroutine works with. It is used again for one volume after the other.
type desk struct {
	subject subject
	view    volumeView
	actions []action
}

// begin makes the desk ready for a volume.
func (d *desk) begin(name v1.UniqueVolumeName) {
	d.subject = subject{name: name, wanted: d.subject.wanted[:0], at: d.subject.at.cleared(), actual: d.subject.actual}
	d.view = volumeView{pods: d.view.pods[:0]}
	d.actions = d.actions[:0]
}

// deskPods is of how many pods the memory of a desk is kept.
const deskPods = 64

// clear lets go of what the desk held.
func (d *desk) clear() {
	wanted, mounts := d.subject.wanted, d.subject.actual.Mounts
	if max(cap(wanted), cap(mounts), cap(d.view.pods)) > deskPods {
		*d = desk{}
		return
	}
	clear(wanted)
	clear(mounts)
	clear(d.view.pods)
	d.subject.actual.AttachedVolume = cache.AttachedVolume{}
}

// reconcile plans one volume and begins what is to be done. Only the planner's goroutine calls it.
func (m *Manager) reconcile(ctx context.Context, name v1.UniqueVolumeName, d *desk) {
	m.planned.Add(1)
	// What is pending is read before what is known: an operation that ends in between is seen as pending, and its key
	// marks the volume dirty when it is free.
	running := m.stillRunning(name)
	d.begin(name)
	defer d.clear()
	s := &d.subject
	m.look(d, running)
	m.exchange.planned(s)
	d.actions = m.stopping.permitted(d.view.plan(d.actions))
	work := volumeWork{running: running}
	for pod, err := range s.waits {
		work.note(pod, trouble{err: err})
	}
	for _, a := range d.actions {
		m.begin(ctx, s, a, &work)
	}
	m.keepWork(name, work)
}

// stillRunning returns the operations on a volume whose keys are not free.
func (m *Manager) stillRunning(name v1.UniqueVolumeName) []runningOperation {
	m.mu.Lock()
	work := m.work[name]
	m.mu.Unlock()
	if work == nil {
		return nil
	}
	var running []runningOperation
	for _, r := range work.running {
		if m.executor.IsOperationPending(r.key) {
			running = append(running, r)
		}
	}
	return running
}

// look gathers all that the planner needs of the volume on its desk.
func (m *Manager) look(d *desk, running []runningOperation) {
	s, view := &d.subject, &d.view
	s.wanted = m.desired.AppendVolumesToMount(s.wanted, s.name)
	s.known = m.actual.SnapshotInto(&s.actual, s.name)
	view.known, view.attachable, view.device = s.known, s.actual.PluginIsAttachable, s.actual.DeviceMountState
	if s.known && view.attachable {
		view.attached = attachState(s.actual.AttachState)
	}
	for i := range s.wanted {
		row := &s.wanted[i]
		s.viewOf(row.PodName, view).wanted = true
		view.pods[i].waits = s.mustWait(row)
		view.attachable = row.PluginIsAttachable
	}
	for i := range s.actual.Mounts {
		mounted := &s.actual.Mounts[i]
		p := s.viewOf(mounted.PodName, view)
		p.state, p.remount, p.stale = mounted.State, s.isOutdated(mounted), s.isStale(mounted)
	}
	for _, r := range running {
		if r.pod == "" {
			view.pending = true
		} else {
			s.viewOf(r.pod, view).pending = true
		}
	}
	m.exchange.judge(s, view)
	m.growth.judge(s, view)
	m.judge(s.name, view)
}

// viewOf returns the view of a pod, which it adds where it is missing. The pods that want the volume come first.
func (s *subject) viewOf(pod volume.UniquePodName, view *volumeView) *podView {
	i, ok := s.at.find(pod)
	if !ok {
		s.at.add(pod)
		i, view.pods = len(view.pods), append(view.pods, podView{name: pod})
	}
	return &view.pods[i]
}

// wantedBy returns what a pod wants, or nil.
func (s *subject) wantedBy(pod volume.UniquePodName) *operationexecutor.VolumeToMount {
	if i, ok := s.at.find(pod); ok && i < len(s.wanted) {
		return &s.wanted[i]
	}
	return nil
}

// isOutdated reports whether a set-up has to be refreshed for an update of its pod. One that came while the volume was being
// set up for the pod as it was before is told by the pod alone.
func (s *subject) isOutdated(mounted *cache.MountedVolume) bool {
	if mounted.RemountRequired || !s.actual.PluginRequiresRemount {
		return mounted.RemountRequired
	}
	row := s.wantedBy(mounted.PodName)
	return row != nil && row.Pod != mounted.Pod
}

// isStale reports whether a set-up is that of an earlier pod with the UID of one that wants the volume now.
func (s *subject) isStale(mounted *cache.MountedVolume) bool {
	row := s.wantedBy(mounted.PodName)
	return row != nil && !mounted.IsFor(row.Incarnation)
}

// hasStale reports whether what is set up for a pod is stale.
func (s *subject) hasStale(pod volume.UniquePodName) bool {
	return slices.ContainsFunc(s.actual.Mounts, func(mounted cache.MountedVolume) bool {
		return mounted.PodName == pod && s.isStale(&mounted)
	})
}

// judge fills in what is not known yet: which pods may turn out to use the volume.
func (m *Manager) judge(name v1.UniqueVolumeName, view *volumeView) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, adopted := m.adopted[name]
	view.adopted = adopted || m.rebuilding
	for i := range view.pods {
		p := &view.pods[i]
		p.held = !p.wanted && m.mayUse(p.name)
	}
}

// begin begins one action and notes in work how that went.
func (m *Manager) begin(ctx context.Context, s *subject, a action, work *volumeWork) {
	if t, ok := m.refusal(s.name, a.verb); ok {
		work.note(a.pod, t)
		m.dirty.AddAt(s.name, t.until)
		return
	}
	if a.verb == verbForget {
		m.forget(s.name)
		m.exchange.forgot(s.name)
		return
	}
	if err := m.prove(s.name); err != nil {
		work.note(a.pod, trouble{err: err}) // A change of the plugins, and the resync, mark the volume dirty.
		return
	}
	if a.verb == verbMount && m.reuse(ctx, s, a.pod) {
		m.dirty.Add(s.name) // It may have to grow.
		return
	}
	f, ok := m.depart(s, a)
	if !ok {
		return
	}
	started, err := m.start(ctx, s, a)
	if err == nil {
		work.running = append(work.running, started)
		return
	}
	m.land(f)
	m.didNotBegin(s, a, err, work)
}

// didNotBegin notes why an operation did not begin, and sees to it that it is tried again.
func (m *Manager) didNotBegin(s *subject, a action, err error, work *volumeWork) {
	var pending *volume.PendingError
	var missing *operationexecutor.MountPreconditionError
	var backoff *volume.BackoffError
	switch {
	case errors.As(err, &backoff):
		work.note(a.pod, trouble{err: backoff.Err, attempts: backoff.Attempts, until: backoff.Until})
		if a.verb != verbExpand || !m.growth.awaits(s, backoff.Err) {
			m.dirty.AddAt(s.name, backoff.Until)
		}
	case errors.As(err, &missing):
		// The change of the node's status that is waited for marks the volume dirty.
		work.note(a.pod, trouble{err: m.exchange.explain(missing)})
	case errors.As(err, &pending):
		// The key marks the volume dirty when it is free. The trouble before, if any, stays.
	default:
		until := timeAfter(1)
		work.note(a.pod, trouble{err: err, attempts: 1, until: until})
		m.dirty.AddAt(s.name, until)
	}
}

// start begins the operation of one action.
func (m *Manager) start(ctx context.Context, s *subject, a action) (runningOperation, error) {
	whole := operationexecutor.Key{Volume: s.name}
	switch a.verb {
	case verbUnmount:
		op, err := m.executor.UnmountVolume(ctx, s.mounted(a.pod), m.actual)
		return runningOperation{op: op, key: operationexecutor.Key{Volume: s.name, Pod: a.pod}, pod: a.pod}, err
	case verbAttach:
		op, err := m.executor.AttachVolume(ctx, s.toAttach(m.node()), m.actual)
		return runningOperation{op: op, key: whole}, err
	case verbVerify:
		op, err := m.executor.VerifyControllerAttachedVolume(ctx, s.anyWanted(), m.node(), m.actual)
		return runningOperation{op: op, key: whole}, err
	case verbMount, verbRemount:
		return m.startMount(ctx, s, a)
	case verbExpand:
		op, err := m.executor.ExpandInUseVolume(ctx, s.toExpand(a.pod), m.actual, s.actual.ClaimSize)
		return runningOperation{op: op, key: whole}, err
	case verbUnmountDevice:
		op, err := m.executor.UnmountDevice(ctx, s.actual.AttachedVolume.AttachedVolume, m.actual)
		return runningOperation{op: op, key: whole}, err
	default:
		op, err := m.executor.DetachVolume(ctx, s.actual.AttachedVolume.AttachedVolume, operationexecutor.DetachOptions{}, m.actual)
		return runningOperation{op: op, key: whole}, err
	}
}

// startMount begins a mount, or a map. The executor keys it by the volume when it may stage it, else by the pod.
func (m *Manager) startMount(ctx context.Context, s *subject, a action) (runningOperation, error) {
	row := *s.wantedBy(a.pod)
	row.DevicePath = s.actual.DevicePath
	if !row.PluginIsAttachable && !s.known {
		if err := m.actual.MarkVolumeAsAttached(s.name, row.VolumeSpec, m.node(), ""); err != nil {
			return runningOperation{}, err
		}
	}
	started := runningOperation{key: operationexecutor.Key{Volume: s.name}}
	if !row.PluginIsAttachable && !row.PluginIsDeviceMountable {
		started.key.Pod, started.pod = a.pod, a.pod
	}
	var err error
	started.op, err = m.executor.MountVolume(ctx, row, operationexecutor.MountOptions{IsRemount: a.verb == verbRemount}, m.actual)
	return started, err
}

// mounted returns the set-up of a pod.
func (s *subject) mounted(pod volume.UniquePodName) operationexecutor.MountedVolume {
	for _, mounted := range s.actual.Mounts {
		if mounted.PodName == pod {
			return mounted.MountedVolume
		}
	}
	return operationexecutor.MountedVolume{VolumeName: s.name, PodName: pod}
}

// toAttach returns the volume with the pods that wait for it.
func (s *subject) toAttach(node types.NodeName) operationexecutor.VolumeToAttach {
	v := operationexecutor.VolumeToAttach{VolumeName: s.name, NodeName: node}
	for i := range s.wanted {
		row := &s.wanted[i]
		if s.waits[row.PodName] != nil {
			continue
		}
		v.VolumeSpec = row.VolumeSpec
		v.ScheduledPods = append(v.ScheduledPods, row.Pod)
	}
	return v
}

// forget drops a volume of which nothing is left.
func (m *Manager) forget(name v1.UniqueVolumeName) {
	err := m.actual.DeleteVolume(name)
	m.forgot(name, err)
	if err != nil {
		m.dirty.Add(name)
		return
	}
	m.executor.Forget(name)
	if m.desired.VolumeExists(name) {
		m.dirty.Add(name) // A pod wants it in another way.
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
	m.refusals[name] = trouble{err: err, attempts: attempts, until: timeAfter(attempts)}
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

// keepWork replaces what is known of the operations on a volume. While one of them runs, earlier troubles stay, so that
// a volume that fails again and again shows why also while it is tried.
func (m *Manager) keepWork(name v1.UniqueVolumeName, work volumeWork) {
	defer m.changes.subscribers.tell(topic{volume: name})
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(work.running) == 0 && len(work.troubles) == 0 {
		delete(m.work, name)
		return
	}
	if old := m.work[name]; old != nil && len(work.running) > 0 {
		for pod, t := range old.troubles {
			if _, ok := work.troubles[pod]; !ok {
				work.note(pod, t)
			}
		}
	}
	m.work[name] = &work
}
