package reconciler

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/changes"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// Operation is an operation that runs, or that is about to begin.
type Operation struct {
	// Handle is nil until it has begun.
	Handle *operationexecutor.Operation
	// Whole says that it has the whole volume to itself, also where it is for one pod.
	Whole bool
	pod   volume.UniquePodName // empty: it concerns the volume as a whole
}

// operation is an operation from the moment in which it is certain that it will begin until its key is free. The actual
// state does not know of it yet, or still knows what it is taking away; so who waits for a pod has to look at both, at
// the operations first.
type operation struct {
	Operation
	volume v1.UniqueVolumeName
	kind   operationexecutor.OperationKind // that of a filesystem, for block volumes too
	// awaited says that a worker plans the volume again when the operation has ended, and ended that its key is free.
	awaited, ended bool
	// podGone says that the directory of the pod went with the volume.
	podGone bool
}

// concerns reports whether the operation is on a volume and concerns a pod, or is on the volume when there is no pod.
func (op *operation) concerns(name v1.UniqueVolumeName, pod volume.UniquePodName) bool {
	return op.volume == name && (pod == "" || op.Whole || op.pod == pod)
}

// operations are those that run: at most one for each worker, and those of which calls were left behind.
type operations []*operation

// count returns how many are for a pod.
func (o operations) count(pod volume.UniquePodName) int {
	n := 0
	for _, op := range o {
		if op.pod == pod {
			n++
		}
	}
	return n
}

func (o operations) without(op *operation) operations {
	return slices.DeleteFunc(o, func(other *operation) bool { return other == op })
}

// find returns the operation that the executor tells of; nil when no worker has begun it: a verification.
func (o operations) find(info operationexecutor.OperationInfo) *operation {
	kind := FilesystemKind(info.Kind)
	for _, op := range o {
		if op.volume == info.VolumeName && op.pod == info.PodName && op.kind == kind {
			return op
		}
	}
	return nil
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

// FilesystemKind returns the operation that does for a filesystem what one of this kind does for a block volume.
func FilesystemKind(kind operationexecutor.OperationKind) operationexecutor.OperationKind {
	return cmp.Or(asOfFilesystem[kind], kind)
}

// enter enters the operation of an action. It returns nil when its pod has come or gone since it was planned: who changed the pod
// adds the volume to the queue after that. It is entered before the pods are asked, so that who changes a pod and then looks
// at the operations sees it, or it sees the change.
func (r *Reconciler) enter(v *view, a action) *operation {
	op := &operation{
		Operation: Operation{Whole: v.needsAll(a), pod: a.pod},
		volume:    v.name, kind: kindOf[a.verb], awaited: true,
	}
	r.mu.Lock()
	r.running = append(r.running, op)
	r.mu.Unlock()
	if !r.isDue(v, a) {
		r.takeOut(op)
		return nil
	}
	return op
}

// needsAll reports whether an action needs the whole volume for itself, as the executor keys it.
func (v *view) needsAll(a action) bool {
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

// isDue reports whether an action is still right.
func (r *Reconciler) isDue(v *view, a action) bool {
	switch a.verb {
	case verbUnmount:
		return v.hasStale(a.pod) || !r.Pods.Uses(a.pod, v.name) && !r.Pods.MayUse(a.pod)
	case verbMount, verbRemount, verbExpand:
		return r.Pods.Uses(a.pod, v.name)
	case verbAttach, verbVerify:
		return slices.ContainsFunc(v.wanted, func(row operationexecutor.VolumeToMount) bool { return r.Pods.Uses(row.PodName, v.name) })
	default:
		// Pods that came since wait for the volume's key, and get it staged and attached again.
		return true
	}
}

// begun notes that an operation has its key.
func (r *Reconciler) begun(op *operation, of *operationexecutor.Operation) {
	r.mu.Lock()
	op.Handle = of
	r.mu.Unlock()
	if op.pod == "" {
		r.Changes.Tell(changes.Topic{Volume: op.volume})
		return
	}
	r.Changes.Tell(changes.Topic{Pod: types.UID(op.pod)})
}

// KeyFreed is told by the executor when an operation has ended and all of its calls have returned.
func (r *Reconciler) KeyFreed(o operationexecutor.OperationInfo) {
	podGone := FilesystemKind(o.Kind) == operationexecutor.OpUnmount && r.Cleaner.RemovePodDirs(o)
	if o.VolumeName == "" {
		return // It was about several volumes, or about none that is known.
	}
	r.mu.Lock()
	op := r.running.find(o)
	if op != nil {
		op.podGone = podGone
		r.failures.note(podvolume.Key{Volume: op.volume, Pod: op.pod}, op.Handle.Err())
	}
	r.mu.Unlock()
	if op != nil {
		r.takeOut(op)
	}
	r.planAfter(op, o)
}

// takeOut takes out an operation that did not begin, or whose key is free.
func (r *Reconciler) takeOut(op *operation) {
	r.mu.Lock()
	last := op.kind == operationexecutor.OpUnmount && !op.podGone && r.running.count(op.pod) == 1
	if !last {
		r.running = r.running.without(op)
	}
	r.mu.Unlock()
	if last {
		// Of two that end at once, one comes here; who waits for the pod waits for this too.
		r.Cleaner.LastTornDown(op.pod)
		r.mu.Lock()
		r.running = r.running.without(op)
		r.mu.Unlock()
	}
	r.Cleaner.Ended(op.pod)
}

// planAfter has a volume planned after an operation: by the worker that has run it, or by any.
func (r *Reconciler) planAfter(op *operation, o operationexecutor.OperationInfo) {
	r.mu.Lock()
	deferred := r.deferred[o.VolumeName]
	delete(r.deferred, o.VolumeName)
	awaited := op != nil && op.awaited
	if awaited {
		op.ended = true
	}
	r.mu.Unlock()
	if !awaited {
		deferred = append(deferred, affectedPod(o))
	}
	for _, pod := range deferred {
		r.queue.Add(podvolume.Key{Volume: o.VolumeName, Pod: pod})
	}
}

// affectedPod returns the pod for which an operation may have changed the volume; empty: for all.
func affectedPod(o operationexecutor.OperationInfo) volume.UniquePodName {
	switch FilesystemKind(o.Kind) {
	case operationexecutor.OpMount, operationexecutor.OpUnmount:
		return o.PodName
	default:
		return ""
	}
}

// hasEnded reports whether the key of an operation that a worker has run is free. When it is not, because calls were left
// behind, the volume is added to the queue once it is, and the worker waits no longer.
func (r *Reconciler) hasEnded(op *operation) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	op.awaited = false
	return op.ended
}

// deferUntilFree has what could not begin planned when an operation on the volume has ended.
func (r *Reconciler) deferUntilFree(h podvolume.Key) {
	r.mu.Lock()
	runs := slices.ContainsFunc(r.running, func(op *operation) bool { return op.volume == h.Volume })
	if runs {
		r.deferred[h.Volume] = append(r.deferred[h.Volume], h.Pod)
	}
	r.mu.Unlock()
	if !runs {
		r.queue.Add(h) // It has ended just now.
	}
}
