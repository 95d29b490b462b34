package reconciler

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// Operation is an operation that runs or is about to begin.
type Operation struct {
	// Handle is the executor's operation; nil until it has begun.
	Handle *operationexecutor.Operation
	// Whole says that the operation has the whole volume to itself. An operation for a single pod may, too.
	Whole bool
	pod   volume.UniquePodName // empty: the volume as a whole
}

// operation is an operation from the moment at which it is certain to begin until its key is free. Meanwhile the actual
// state may not show it yet, or may still show what it is taking away. A caller that waits for a pod has to read both: the
// operations first, then the actual state.
type operation struct {
	Operation
	volume v1.UniqueVolumeName
	path   volumePath                      // for the operation of a pod
	kind   operationexecutor.OperationKind // for a block volume, the kind of a filesystem's operation
	// awaited says that a worker waits for the end of the operation and plans the volume then. ended says that its key is
	// free.
	awaited, ended bool
	// podGone says that the unmount also removed the directory of the pod.
	podGone bool
}

// concerns reports whether the operation is on a volume and concerns a pod. Without a pod it reports whether the operation
// is on the volume.
func (op *operation) concerns(name v1.UniqueVolumeName, pod volume.UniquePodName) bool {
	return op.volume == name && (pod == "" || op.Whole || op.pod == pod)
}

// operations holds the operations that run: at most one for each worker, and those with abandoned calls.
type operations []*operation

// count returns how many operations are for a pod.
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

// find returns the operation that the executor reports on. It is nil if no worker has begun it, as with a verification of
// all attachments.
func (o operations) find(info operationexecutor.OperationInfo) *operation {
	kind := FilesystemKind(info.Kind)
	for _, op := range o {
		if op.volume == info.VolumeName && op.pod == info.PodName && op.kind == kind {
			return op
		}
	}
	return nil
}

// kindOf maps the verb of an action to the operation that it begins.
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

// asOfFilesystem maps the executor's operations on block volumes to their counterparts on filesystems.
var asOfFilesystem = map[operationexecutor.OperationKind]operationexecutor.OperationKind{
	operationexecutor.OpMap:         operationexecutor.OpMount,
	operationexecutor.OpUnmap:       operationexecutor.OpUnmount,
	operationexecutor.OpUnmapDevice: operationexecutor.OpUnmountDevice,
}

// FilesystemKind returns the counterpart on filesystems of an operation on block volumes. It returns any other kind
// unchanged.
func FilesystemKind(kind operationexecutor.OperationKind) operationexecutor.OperationKind {
	return cmp.Or(asOfFilesystem[kind], kind)
}

// enter adds the operation of an action to the running ones. It returns nil if the action is out of date, because its pod was
// added or removed since the plan, or if another volume has its path. The later change marks the volume again. enter adds the
// operation first and then checks the pods. So if a caller changes a pod and then reads the operations, either the caller sees
// the operation, or enter sees the change.
func (r *Reconciler) enter(v *view, a action) *operation {
	op := &operation{
		Operation: Operation{Whole: v.needsAll(a), pod: a.pod},
		volume:    v.name, path: v.pathOf(a), kind: kindOf[a.verb], awaited: true,
	}
	if by := r.addIfPathIsFree(op); by != "" {
		r.failUsedPath(op, by)
		return nil
	}
	if !r.isDue(v, a) {
		r.removeOperation(op)
		return nil
	}
	if by := r.otherVolumeAtPath(op); by != "" {
		r.failUsedPath(op, by)
		r.Cleaner.Ended(op.pod) // Another operation of the pod may have ended while this one was among the running ones.
		return nil
	}
	return op
}

// needsAll reports whether an action needs the whole volume to itself. It follows the executor's keys.
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

// isDue reports whether an action is still right for the present pods.
func (r *Reconciler) isDue(v *view, a action) bool {
	switch a.verb {
	case verbUnmount:
		return v.hasStale(a.pod) || !r.Pods.Uses(a.pod, v.name) && !r.Pods.MayUse(a.pod)
	case verbMount, verbRemount, verbExpand:
		return r.Pods.Uses(a.pod, v.name) && r.wantsAsPlanned(v, a.pod)
	case verbAttach, verbVerify:
		return slices.ContainsFunc(v.wanted, func(row operationexecutor.VolumeToMount) bool { return r.Pods.Uses(row.PodName, v.name) })
	default:
		// Pods that were added since wait for the volume's key. The volume is then attached and staged again for them.
		return true
	}
}

// wantsAsPlanned reports whether the pod that wants the volume is the one of the plan. A pod that was removed and added since is
// another one, and what is set up for the first is torn down before.
func (r *Reconciler) wantsAsPlanned(v *view, pod volume.UniquePodName) bool {
	row := v.wantedBy(pod)
	return row == nil || row.Incarnation == r.Desired.Incarnation(v.name, pod)
}

// begun notes that an operation has its key, and reports the change.
func (r *Reconciler) begun(op *operation, of *operationexecutor.Operation) {
	r.mu.Lock()
	op.Handle = of
	r.mu.Unlock()
	r.Changes.Publish(topicOf(podvolume.Key{Volume: op.volume, Pod: op.pod}))
}

// hasBegun reports whether an operation has had its key.
func (r *Reconciler) hasBegun(op *operation) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return op.Handle != nil
}

// KeyFreed is called by the executor when an operation has ended and all of its calls have returned.
func (r *Reconciler) KeyFreed(o operationexecutor.OperationInfo) {
	if o.VolumeName == "" {
		return // The operation was on several volumes, or on an unknown one.
	}
	r.mu.Lock()
	op := r.running.find(o)
	r.mu.Unlock()
	if op != nil {
		r.end(op, o)
	}
	r.planAfter(op, o)
}

// end removes an operation whose key is free. After a teardown it removes the directories of the pod that are empty.
func (r *Reconciler) end(op *operation, o operationexecutor.OperationInfo) {
	err := op.Handle.Err()
	podGone := err == nil && op.kind == operationexecutor.OpUnmount && r.Cleaner.RemovePodDirs(o)
	r.mu.Lock()
	op.podGone = podGone
	r.failures.note(podvolume.Key{Volume: op.volume, Pod: op.pod}, err)
	r.mu.Unlock()
	r.removeOperation(op)
}

// removeOperation removes an operation that has not begun, or whose key is free.
func (r *Reconciler) removeOperation(op *operation) {
	r.mu.Lock()
	last := op.kind == operationexecutor.OpUnmount && !op.podGone && r.running.count(op.pod) == 1
	if !last {
		r.running = r.running.without(op)
	}
	r.mu.Unlock()
	if last {
		// If two operations end at once, only the second one comes here. It stays entered until LastTornDown returns,
		// because waiters for the pod wait for that, too.
		r.Cleaner.LastTornDown(op.pod)
		r.mu.Lock()
		r.running = r.running.without(op)
		r.mu.Unlock()
	}
	r.queueWaitingForPath(op.pod)
	r.Cleaner.Ended(op.pod)
}

// planAfter marks what has to be planned after an operation. If a worker awaits the operation, that worker plans the volume;
// otherwise any worker does.
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

// affectedPod returns the pod for which an operation may have changed the volume; empty if it may have changed it for all
// pods.
func affectedPod(o operationexecutor.OperationInfo) volume.UniquePodName {
	switch FilesystemKind(o.Kind) {
	case operationexecutor.OpMount, operationexecutor.OpUnmount:
		return o.PodName
	default:
		return ""
	}
}

// hasEnded reports whether the key of a worker's operation is free. If abandoned calls still hold the key it returns false:
// the worker stops waiting, and the volume is marked when the key becomes free.
func (r *Reconciler) hasEnded(op *operation) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	op.awaited = false
	return op.ended
}

// deferUntilFree marks what could not begin as soon as an operation on the volume has ended.
func (r *Reconciler) deferUntilFree(h podvolume.Key) {
	r.mu.Lock()
	runs := slices.ContainsFunc(r.running, func(op *operation) bool { return op.volume == h.Volume })
	if runs {
		r.deferred[h.Volume] = append(r.deferred[h.Volume], h.Pod)
	}
	r.mu.Unlock()
	if !runs {
		r.queue.Add(h) // The operation has ended just now.
	}
}
