package reconciler

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// view holds the desired and the actual state of one volume for a plan: for all pods, or for one. Each worker has one view,
// and reuses its memory for each plan.
type view struct {
	name v1.UniqueVolumeName
	// pod is the only pod that was read; empty if all were.
	pod volume.UniquePodName
	// wanted holds the volume as each pod needs it, in the order in which the pods were added.
	wanted []operationexecutor.VolumeToMount
	known  bool
	actual cache.VolumeSnapshot
	// running holds the operations on the volume.
	running []Operation
	// waits holds, for each pod that wants the volume in another way than it is mounted now, the reason why the pod has to
	// wait.
	waits map[volume.UniquePodName]error
	// inputs is the input of the planner. Its first pods are the pods that want the volume, in the order of wanted. at holds
	// the index of each pod if there are many.
	inputs volumeView
	at     map[volume.UniquePodName]int
	// actions is the plan.
	actions []action
}

// few is up to how many pods a linear search is used instead of a map.
const few = 8

// read reads all that the planner needs about a volume. With a pod, it reads only that pod if the volume is set up for
// another one, too: its cost then does not depend on the number of pods. Otherwise it reads all pods.
func (r *Reconciler) read(v *view, name v1.UniqueVolumeName, pod volume.UniquePodName) {
	// The operations are read before the actual state. An operation that ends in between counts as running, and the volume
	// is marked when its key becomes free.
	*v = view{
		name: name, wanted: v.wanted[:0], actual: cache.VolumeSnapshot{Mounts: v.actual.Mounts[:0]}, actions: v.actions[:0],
		running: r.appendOperations(v.running[:0], name, ""), inputs: volumeView{pods: v.inputs.pods[:0]},
	}
	if pod == "" {
		v.known = r.Actual.SnapshotInto(&v.actual, name)
	} else {
		v.known = r.Actual.SnapshotOfPodInto(&v.actual, name, pod)
		v.inputs.hasOtherPods = slices.ContainsFunc(v.actual.Mounts, func(mounted cache.MountedVolume) bool { return mounted.PodName != pod })
	}
	if v.inputs.hasOtherPods {
		v.pod = pod
		if row, ok := r.Desired.VolumeToMount(name, pod); ok {
			v.wanted = append(v.wanted, row)
		}
	} else {
		v.wanted = r.Desired.AppendVolumesToMount(v.wanted, name)
	}
	r.readFound(v)
	v.fill()
	r.addFacts(v)
}

// readFound reads again for which pods the set-ups are that a restart has found. A pod that was removed and added between the reads
// of both states is another pod, and they are not for it.
func (r *Reconciler) readFound(v *view) {
	for i := range v.actual.Mounts {
		found := &v.actual.Mounts[i]
		if found.Incarnation != 0 {
			continue
		}
		if now, ok := r.Actual.GetMountedVolume(v.name, found.PodName); ok {
			found.Incarnation = now.Incarnation
		}
	}
}

// addFacts adds what other parts of the manager know about the volume.
func (r *Reconciler) addFacts(v *view) {
	controller, contradicted := r.Attachments.AttachedBy(v.name, &v.actual)
	v.inputs.byController = controller
	if contradicted && v.inputs.attached == cache.Attached {
		v.inputs.attached = cache.AttachUncertain
	}
	v.inputs.adopted = r.Pods.MayBeWanted(v.name)
	for i := range v.inputs.pods {
		p := &v.inputs.pods[i]
		p.mayUse = !p.wanted && r.Pods.MayUse(p.name)
		p.expand = p.state == operationexecutor.VolumeMounted && r.mustExpand(v, p.name)
	}
}

// mustExpand reports whether the volume is smaller than a pod's PersistentVolume. It is false if the volume's size is unknown.
func (r *Reconciler) mustExpand(v *view, pod volume.UniquePodName) bool {
	row := v.wantedBy(pod)
	return row != nil && !v.actual.ClaimSize.IsZero() && r.Expansions.MustExpand(row, v.actual.ClaimSize)
}

// fill makes the planner's input from the desired and the actual state.
func (v *view) fill() {
	if len(v.wanted)+len(v.actual.Mounts) > few {
		v.at = make(map[volume.UniquePodName]int)
	}
	to := &v.inputs
	to.known, to.attachable, to.device = v.known, v.actual.PluginIsAttachable, v.actual.DeviceMountState
	if v.known && to.attachable {
		to.attached = v.actual.AttachState
	}
	for i := range v.wanted {
		row := &v.wanted[i]
		p := v.podView(row.PodName)
		p.wanted, p.waits = true, v.mustWait(row)
		to.attachable = row.PluginIsAttachable
	}
	for i := range v.actual.Mounts {
		mounted := &v.actual.Mounts[i]
		if v.pod == "" || v.pod == mounted.PodName {
			p := v.podView(mounted.PodName)
			p.state, p.remount, p.stale = mounted.State, v.isOutdated(mounted), v.isStale(mounted)
		}
	}
	for _, op := range v.running {
		switch {
		case op.Whole:
			to.pending = true
		case v.pod == "" || v.pod == op.pod:
			v.podView(op.pod).pending = true
		}
	}
}

// podView returns the planner's view of a pod, and adds it if it is missing.
func (v *view) podView(pod volume.UniquePodName) *podView {
	i := v.index(pod)
	if i < 0 {
		i = len(v.inputs.pods)
		v.inputs.pods = append(v.inputs.pods, podView{name: pod})
		if v.at != nil {
			v.at[pod] = i
		}
	}
	return &v.inputs.pods[i]
}

// index returns the index of a pod in the planner's input; -1 if it is missing.
func (v *view) index(pod volume.UniquePodName) int {
	if v.at == nil {
		return slices.IndexFunc(v.inputs.pods, func(p podView) bool { return p.name == pod })
	}
	if i, ok := v.at[pod]; ok {
		return i
	}
	return -1
}

// wantedBy returns the volume as a pod wants it; nil if the pod does not want it.
func (v *view) wantedBy(pod volume.UniquePodName) *operationexecutor.VolumeToMount {
	if i := v.index(pod); 0 <= i && i < len(v.wanted) {
		return &v.wanted[i]
	}
	return nil
}

// anyWanted returns the volume as one of the pods wants it. Whatever concerns the volume as a whole is the same for all
// pods.
func (v *view) anyWanted() operationexecutor.VolumeToMount {
	if len(v.wanted) == 0 {
		return operationexecutor.VolumeToMount{}
	}
	return v.wanted[0]
}

// isOutdated reports whether a set-up has to be refreshed because its pod was updated. An update that came while the volume
// was being set up left no mark in the actual state: only the pod itself differs then.
func (v *view) isOutdated(mounted *cache.MountedVolume) bool {
	if mounted.RemountRequired || !v.actual.PluginRequiresRemount {
		return mounted.RemountRequired
	}
	row := v.wantedBy(mounted.PodName)
	return row != nil && row.Pod != mounted.Pod
}

// isStale reports whether a set-up belongs to an earlier pod with the same UID as one that wants the volume now.
func (v *view) isStale(mounted *cache.MountedVolume) bool {
	row := v.wantedBy(mounted.PodName)
	return row != nil && !mounted.IsFor(row.Incarnation)
}

// hasStale reports whether a pod has a stale set-up.
func (v *view) hasStale(pod volume.UniquePodName) bool {
	return slices.ContainsFunc(v.actual.Mounts, func(mounted cache.MountedVolume) bool {
		return mounted.PodName == pod && v.isStale(&mounted)
	})
}

// mounted returns the set-up of a pod.
func (v *view) mounted(pod volume.UniquePodName) operationexecutor.MountedVolume {
	for _, mounted := range v.actual.Mounts {
		if mounted.PodName == pod {
			return mounted.MountedVolume
		}
	}
	return operationexecutor.MountedVolume{VolumeName: v.name, PodName: pod}
}

// toAttach returns the volume to attach, with the pods that wait for it.
func (v *view) toAttach(node types.NodeName) operationexecutor.VolumeToAttach {
	attach := operationexecutor.VolumeToAttach{VolumeName: v.name, NodeName: node}
	for i := range v.wanted {
		row := &v.wanted[i]
		if v.waits[row.PodName] != nil {
			continue
		}
		attach.VolumeSpec = row.VolumeSpec
		attach.ScheduledPods = append(attach.ScheduledPods, row.Pod)
	}
	return attach
}

// toMount returns the volume as a pod wants it, with its device on this node.
func (v *view) toMount(pod volume.UniquePodName) operationexecutor.VolumeToMount {
	row := *v.wantedBy(pod)
	row.DevicePath = v.actual.DevicePath
	return row
}

// claim returns the claim of the volume; the zero value if it has none.
func (v *view) claim() v1.ObjectReference {
	for i := range v.wanted {
		if pv := v.wanted[i].VolumeSpec.PersistentVolume; pv != nil && pv.Spec.ClaimRef != nil {
			return *pv.Spec.ClaimRef
		}
	}
	return v1.ObjectReference{}
}

// foundFor returns a pod's set-up that the restart has found and that no operation has touched since; nil if there is none.
func (v *view) foundFor(pod volume.UniquePodName) *cache.MountedVolume {
	for i := range v.actual.Mounts {
		if m := &v.actual.Mounts[i]; m.PodName == pod && m.Reconstructed && m.State == operationexecutor.VolumeMountUncertain {
			return m
		}
	}
	return nil
}
