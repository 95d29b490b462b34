package volumemanager

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/changes"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// runningOperation is an operation from the moment in which it is certain that it will begin until its key is free. The actual
// state does not know of it yet, or still knows what it is taking away; so who waits for a pod has to look at both, at
// the operations first.
type runningOperation struct {
	volume v1.UniqueVolumeName
	pod    volume.UniquePodName            // empty: it concerns the volume as a whole
	kind   operationexecutor.OperationKind // that of a filesystem, for block volumes too
	// whole says that it has the whole volume to itself, also where it is for one pod.
	whole bool
	op    *operationexecutor.Operation // nil until it has its key
	// awaited says that a worker goes on with the volume when the operation has ended, lookAgain that its key is free, and the
	// worker is to look again.
	awaited, lookAgain bool
	// podGone says that the directory of the pod went with the volume.
	podGone bool
}

// operations are those that run.
type operations struct {
	byVolume map[v1.UniqueVolumeName][]*runningOperation
	byPod    map[volume.UniquePodName][]*runningOperation
	// waiting is what could not begin beside an operation on the same volume, and is looked at when one ends.
	waiting map[v1.UniqueVolumeName][]podvolume.Key
}

func newOperations() operations {
	return operations{
		byVolume: make(map[v1.UniqueVolumeName][]*runningOperation), byPod: make(map[volume.UniquePodName][]*runningOperation),
		waiting: make(map[v1.UniqueVolumeName][]podvolume.Key),
	}
}

func (o *operations) add(r *runningOperation) {
	o.byVolume[r.volume] = append(o.byVolume[r.volume], r)
	if r.pod != "" {
		o.byPod[r.pod] = append(o.byPod[r.pod], r)
	}
}

func (o *operations) remove(r *runningOperation) {
	remove(o.byVolume, r.volume, r)
	if r.pod != "" {
		remove(o.byPod, r.pod, r)
	}
}

func remove[K comparable](of map[K][]*runningOperation, key K, r *runningOperation) {
	left := slices.DeleteFunc(of[key], func(other *runningOperation) bool { return other == r })
	if len(left) == 0 {
		delete(of, key)
		return
	}
	of[key] = left
}

// find returns the operation that the executor tells of; nil when no worker has begun it: a verification.
func (o *operations) find(info operationexecutor.OperationInfo) *runningOperation {
	kind := kindOfFilesystem(info.Kind)
	for _, r := range o.byVolume[info.VolumeName] {
		if r.pod == info.PodName && r.kind == kind {
			return r
		}
	}
	return nil
}

// trouble is why an operation did not begin.
type trouble struct {
	err      error
	attempts int
	until    time.Time
}

// kindOf is the operation that an action begins.
var kindOf = map[verb]operationexecutor.OperationKind{
	verbUnmount:       operationexecutor.OpUnmount,
	verbAttach:        operationexecutor.OpAttach,
	verbVerify:        operationexecutor.OpVerifyControllerAttached,
	verbMount:         operationexecutor.OpMount,
	verbRemount:       operationexecutor.OpMount,
	verbExpand:        operationexecutor.OpExpandInUse,
	verbUnmountDevice: operationexecutor.OpUnmountDevice,
	verbDetach:        operationexecutor.OpDetach,
}

// asOfFilesystem are the operations that the executor begins for a block volume where others get those of a filesystem.
var asOfFilesystem = map[operationexecutor.OperationKind]operationexecutor.OperationKind{
	operationexecutor.OpMap:         operationexecutor.OpMount,
	operationexecutor.OpUnmap:       operationexecutor.OpUnmount,
	operationexecutor.OpUnmapDevice: operationexecutor.OpUnmountDevice,
}

func kindOfFilesystem(kind operationexecutor.OperationKind) operationexecutor.OperationKind {
	return cmp.Or(asOfFilesystem[kind], kind)
}

// enter enters the operation of an action, unless its pod has come or gone since it was planned; it returns nil then. Who changed
// the pod marks the volume after that, so that it is planned again.
func (m *Manager) enter(v *volumeLook, a action) *runningOperation {
	r := &runningOperation{volume: v.name, pod: a.pod, kind: kindOf[a.verb], whole: v.needsAll(a), awaited: true}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.isDue(v, a) {
		return nil
	}
	m.operations.add(r)
	return r
}

// needsAll reports whether an action needs the whole volume for itself, as the executor keys it.
func (v *volumeLook) needsAll(a action) bool {
	switch a.verb {
	case verbUnmount:
		return false
	case verbMount, verbRemount:
		row := v.wantedBy(a.pod)
		return row != nil && (row.PluginIsAttachable || row.PluginIsDeviceMountable)
	default:
		return true
	}
}

// isDue reports whether an action is still right. Manager.mu must be held.
func (m *Manager) isDue(v *volumeLook, a action) bool {
	switch a.verb {
	case verbUnmount:
		return v.hasStale(a.pod) || !m.pods[types.UID(a.pod)].uses(v.name) && !m.mayUse(a.pod)
	case verbMount, verbRemount, verbExpand:
		return m.pods[types.UID(a.pod)].uses(v.name)
	case verbAttach, verbVerify:
		for i := range v.wanted {
			if m.pods[types.UID(v.wanted[i].PodName)].uses(v.name) {
				return true
			}
		}
		return false
	default:
		// Pods that came since wait for the volume's key, and get it staged and attached again.
		return true
	}
}

// mayUse reports whether it is not known which volumes a pod uses: some of its claims were never resolved, or the pod
// was not added yet. Manager.mu must be held.
func (m *Manager) mayUse(podName volume.UniquePodName) bool {
	if entry := m.pods[types.UID(podName)]; entry != nil {
		return !entry.isComplete()
	}
	_, released := m.released[podName]
	return !m.podsComplete && !released
}

// setRunning notes that an operation has its key.
func (m *Manager) setRunning(r *runningOperation, op *operationexecutor.Operation) {
	m.mu.Lock()
	r.op = op
	m.mu.Unlock()
	if r.pod == "" {
		m.changes.Tell(changes.Topic{Volume: r.volume})
		return
	}
	m.changes.Tell(changes.Topic{Pod: types.UID(r.pod)})
}

// keyFreed is told by the executor when an operation has ended and all of its calls have returned.
func (m *Manager) keyFreed(o operationexecutor.OperationInfo) {
	podGone := kindOfFilesystem(o.Kind) == operationexecutor.OpUnmount && m.orphans.RemovePodDirs(o)
	if o.VolumeName == "" {
		return // It was about several volumes, or about none that is known.
	}
	m.mu.Lock()
	r := m.operations.find(o)
	if r != nil {
		r.podGone = podGone
		m.noteFailure(r)
	}
	m.mu.Unlock()
	if r != nil {
		m.takeOut(r)
	}
	m.lookAfter(r, o)
}

// noteFailure keeps why an operation failed until the next look tells when it is tried again. Manager.mu must be held.
func (m *Manager) noteFailure(r *runningOperation) {
	h := podvolume.Key{Volume: r.volume, Pod: r.pod}
	if _, ok := m.troubles[h.Volume][h.Pod]; ok {
		return
	}
	if err := r.op.Err(); err != nil {
		m.setTrouble(h, trouble{err: err})
	}
}

// takeOut takes out an operation that did not begin, or whose key is free.
func (m *Manager) takeOut(r *runningOperation) {
	m.mu.Lock()
	last := r.kind == operationexecutor.OpUnmount && !r.podGone && len(m.operations.byPod[r.pod]) == 1
	if !last {
		m.operations.remove(r)
	}
	m.mu.Unlock()
	if last {
		// Of two that end at once, one comes here; who waits for the pod waits for this too.
		m.sweepNow(r.pod)
		m.mu.Lock()
		m.operations.remove(r)
		m.mu.Unlock()
	}
	m.mu.Lock()
	_, released := m.released[r.pod]
	m.mu.Unlock()
	if released {
		m.settle(r.pod)
	}
	m.changes.Notify(r.pod)
}

// lookAfter has a volume looked at after an operation: by the worker that has run it, or by any.
func (m *Manager) lookAfter(r *runningOperation, o operationexecutor.OperationInfo) {
	m.mu.Lock()
	waiting := m.operations.waiting[o.VolumeName]
	delete(m.operations.waiting, o.VolumeName)
	awaited := r != nil && r.awaited
	if awaited {
		r.lookAgain = true
	}
	m.mu.Unlock()
	if !awaited {
		waiting = append(waiting, toLookAt(o))
	}
	for _, h := range waiting {
		m.volumes.Add(h)
	}
}

// toLookAt returns what an operation may have changed: what the volume is to one pod, or all of it.
func toLookAt(o operationexecutor.OperationInfo) podvolume.Key {
	switch kindOfFilesystem(o.Kind) {
	case operationexecutor.OpMount, operationexecutor.OpUnmount:
		return podvolume.Key{Volume: o.VolumeName, Pod: o.PodName}
	default:
		return podvolume.Key{Volume: o.VolumeName}
	}
}

// mustLookAgain reports whether the key of an operation that a worker has run is free. When it is not, because calls were left
// behind, the volume is marked once it is, and the worker waits no longer.
func (m *Manager) mustLookAgain(r *runningOperation) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r.awaited = false
	return r.lookAgain
}

// lookWhenFree has what could not begin looked at when an operation on the volume has ended.
func (m *Manager) lookWhenFree(h podvolume.Key) {
	m.mu.Lock()
	runs := len(m.operations.byVolume[h.Volume]) > 0
	if runs {
		m.operations.waiting[h.Volume] = append(m.operations.waiting[h.Volume], h)
	}
	m.mu.Unlock()
	if !runs {
		m.volumes.Add(h) // It has ended just now.
	}
}

// runningOf returns the operations on a volume that concern a pod, or, without one, all of them; copies.
func (m *Manager) runningOf(name v1.UniqueVolumeName, pod volume.UniquePodName) []runningOperation {
	return m.appendRunning(nil, name, pod)
}

// appendRunning adds what runningOf returns.
func (m *Manager) appendRunning(running []runningOperation, name v1.UniqueVolumeName, pod volume.UniquePodName) []runningOperation {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.operations.byVolume[name] {
		if pod == "" || r.whole || r.pod == pod {
			running = append(running, *r)
		}
	}
	return running
}

// allRunning returns whom the operations that run are for.
func (m *Manager) allRunning() []podvolume.Key {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []podvolume.Key
	for name, of := range m.operations.byVolume {
		for _, r := range of {
			all = append(all, podvolume.Key{Volume: name, Pod: r.pod})
		}
	}
	return all
}

// isLeaving reports whether a volume is being taken away from a pod.
func (m *Manager) isLeaving(name v1.UniqueVolumeName, podName volume.UniquePodName) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.operations.byPod[podName], func(r *runningOperation) bool {
		return r.volume == name && r.kind == operationexecutor.OpUnmount
	})
}

// changingOf returns the volumes that are being set up for a pod, or taken away from it.
func (m *Manager) changingOf(podName volume.UniquePodName) []v1.UniqueVolumeName {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := make([]v1.UniqueVolumeName, 0, len(m.operations.byPod[podName]))
	for _, r := range m.operations.byPod[podName] {
		names = append(names, r.volume)
	}
	return names
}

// isQuiet reports whether no operation runs.
func (m *Manager) isQuiet() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.operations.byVolume) == 0
}

// note keeps why an operation for a pod, or on the volume as a whole, has to wait.
func (m *Manager) note(h podvolume.Key, t trouble) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.setTrouble(h, t)
}

// setTrouble is note with Manager.mu held.
func (m *Manager) setTrouble(h podvolume.Key, t trouble) {
	of := m.troubles[h.Volume]
	if of == nil {
		of = make(map[volume.UniquePodName]trouble, 1)
		m.troubles[h.Volume] = of
	}
	of[h.Pod] = t
}

// troubleOf returns why an operation has to wait.
func (m *Manager) troubleOf(h podvolume.Key) (trouble, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t, ok := m.troubles[h.Volume][h.Pod]
	return t, ok
}

// noteWaits keeps why pods have to wait that want a volume in another way, and drops the troubles of those that need nothing now. What
// is tried again shows why it failed before, also while it is tried.
func (m *Manager) noteWaits(v *volumeLook, actions []action) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for pod, err := range v.waits {
		m.setTrouble(podvolume.Key{Volume: v.name, Pod: pod}, trouble{err: err})
	}
	of := m.troubles[v.name]
	if len(of) == 0 {
		return
	}
	needed := make(map[volume.UniquePodName]bool, len(actions))
	for _, a := range actions {
		needed[a.pod] = true
	}
	for pod := range of {
		if (v.pod == "" || v.pod == pod) && !needed[pod] && !v.isBusyWith(pod) {
			delete(of, pod)
		}
	}
	if len(of) == 0 {
		delete(m.troubles, v.name)
	}
}

// isBusyWith reports whether an operation for a pod runs, or on the volume as a whole, or whether the pod waits for others.
func (v *volumeLook) isBusyWith(pod volume.UniquePodName) bool {
	i := v.place(pod)
	return v.view.pending || i >= 0 && v.view.pods[i].pending || v.waits[pod] != nil
}
