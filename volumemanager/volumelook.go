package volumemanager

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/changes"
)

// volumeLook is one volume as a plan is made for it: what is desired and what is known, for all pods or for one. Each worker has
// one, whose memory it uses again for its next look.
type volumeLook struct {
	name v1.UniqueVolumeName
	// pod is the one pod that was looked at; empty: all were.
	pod volume.UniquePodName
	// wanted are the pods that want the volume, those that asked first coming first.
	wanted []operationexecutor.VolumeToMount
	known  bool
	actual cache.VolumeSnapshot
	// running are the operations on the volume that concern what was looked at.
	running []runningOperation
	// waits says of pods that want the volume in another way than it is here why they have to wait.
	waits map[volume.UniquePodName]error
	// view is what the planner gets. In it those pods that want the volume come first, as in wanted. at tells the place of each
	// where they are many.
	view volumeView
	at   map[volume.UniquePodName]int
}

// few is how many pods are looked through for one of them.
const few = 8

// look gathers all that the planner needs of a volume, or, with a pod, what it needs of that pod as long as the volume is
// set up for another one: the cost of that does not depend on how many pods there are. When that is not so, it looks at all pods.
func (m *Manager) look(v *volumeLook, name v1.UniqueVolumeName, pod volume.UniquePodName) {
	if pod == "" || !m.lookAtPod(v, name, pod) {
		m.lookAtAllPods(v, name)
	}
	v.fillView()
	m.exchange.judge(v)
	m.growth.judge(v)
	m.judge(v)
}

// lookAtPod gathers what is wanted and known of one pod. It returns false when the volume is set up for no other pod.
func (m *Manager) lookAtPod(v *volumeLook, name v1.UniqueVolumeName, pod volume.UniquePodName) bool {
	m.beginLook(v, name, pod)
	v.known = m.actual.SnapshotOfPodInto(&v.actual, name, pod)
	v.view.othersHaveIt = slices.ContainsFunc(v.actual.Mounts, func(mounted cache.MountedVolume) bool { return mounted.PodName != pod })
	if row, ok := m.desired.VolumeToMount(name, pod); ok {
		v.wanted = append(v.wanted, row)
	}
	return v.view.othersHaveIt
}

// lookAtAllPods gathers what is wanted and known of all pods.
func (m *Manager) lookAtAllPods(v *volumeLook, name v1.UniqueVolumeName) {
	m.beginLook(v, name, "")
	v.wanted = m.desired.AppendVolumesToMount(v.wanted, name)
	v.known = m.actual.SnapshotInto(&v.actual, name)
}

// beginLook begins a look with what runs. That is read before what is known: an operation that ends in between is seen as running,
// and the volume is marked when its key is free.
func (m *Manager) beginLook(v *volumeLook, name v1.UniqueVolumeName, pod volume.UniquePodName) {
	*v = volumeLook{
		name: name, pod: pod, wanted: v.wanted[:0], actual: cache.VolumeSnapshot{Mounts: v.actual.Mounts[:0]},
		running: m.appendRunning(v.running[:0], name, pod), view: volumeView{pods: v.view.pods[:0]},
	}
}

// fillView makes the planner's view of what was gathered.
func (v *volumeLook) fillView() {
	if len(v.wanted)+len(v.actual.Mounts) > few {
		v.at = make(map[volume.UniquePodName]int)
	}
	view := &v.view
	view.known, view.attachable, view.device = v.known, v.actual.PluginIsAttachable, v.actual.DeviceMountState
	if v.known && view.attachable {
		view.attached = attachState(v.actual.AttachState)
	}
	for i := range v.wanted {
		row := &v.wanted[i]
		p := v.podView(row.PodName)
		p.wanted, p.waits = true, v.mustWait(row)
		view.attachable = row.PluginIsAttachable
	}
	for i := range v.actual.Mounts {
		mounted := &v.actual.Mounts[i]
		if v.pod == "" || v.pod == mounted.PodName {
			p := v.podView(mounted.PodName)
			p.state, p.remount, p.stale = mounted.State, v.isOutdated(mounted), v.isStale(mounted)
		}
	}
	for _, r := range v.running {
		if r.whole {
			view.pending = true
		} else {
			v.podView(r.pod).pending = true
		}
	}
}

// podView returns the view of a pod, which it adds where it is missing.
func (v *volumeLook) podView(pod volume.UniquePodName) *podView {
	i := v.place(pod)
	if i < 0 {
		i = len(v.view.pods)
		v.view.pods = append(v.view.pods, podView{name: pod})
		if v.at != nil {
			v.at[pod] = i
		}
	}
	return &v.view.pods[i]
}

// place returns the place of a pod in the view; -1 when it is not there.
func (v *volumeLook) place(pod volume.UniquePodName) int {
	if v.at == nil {
		return slices.IndexFunc(v.view.pods, func(p podView) bool { return p.name == pod })
	}
	if i, ok := v.at[pod]; ok {
		return i
	}
	return -1
}

// wantedBy returns what a pod wants, or nil.
func (v *volumeLook) wantedBy(pod volume.UniquePodName) *operationexecutor.VolumeToMount {
	if i := v.place(pod); 0 <= i && i < len(v.wanted) {
		return &v.wanted[i]
	}
	return nil
}

// anyWanted returns what one of the pods wants of the volume; what concerns the volume is the same for all.
func (v *volumeLook) anyWanted() operationexecutor.VolumeToMount {
	if len(v.wanted) == 0 {
		return operationexecutor.VolumeToMount{}
	}
	return v.wanted[0]
}

// isOutdated reports whether a set-up has to be refreshed for an update of its pod. One that came while the volume was being
// set up for the pod as it was before is told by the pod alone.
func (v *volumeLook) isOutdated(mounted *cache.MountedVolume) bool {
	if mounted.RemountRequired || !v.actual.PluginRequiresRemount {
		return mounted.RemountRequired
	}
	row := v.wantedBy(mounted.PodName)
	return row != nil && row.Pod != mounted.Pod
}

// isStale reports whether a set-up is that of an earlier pod with the UID of one that wants the volume now.
func (v *volumeLook) isStale(mounted *cache.MountedVolume) bool {
	row := v.wantedBy(mounted.PodName)
	return row != nil && !mounted.IsFor(row.Incarnation)
}

// hasStale reports whether what is set up for a pod is stale.
func (v *volumeLook) hasStale(pod volume.UniquePodName) bool {
	return slices.ContainsFunc(v.actual.Mounts, func(mounted cache.MountedVolume) bool {
		return mounted.PodName == pod && v.isStale(&mounted)
	})
}

// topic is what subscribers are told of when the volume was looked at.
func (v *volumeLook) topic() changes.Topic {
	if v.pod != "" {
		return changes.Topic{Pod: types.UID(v.pod)}
	}
	return changes.Topic{Volume: v.name}
}

// judge fills in what is not known yet: which pods may turn out to use the volume.
func (m *Manager) judge(v *volumeLook) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, adopted := m.adopted[v.name]
	v.view.adopted = adopted || m.rebuilding
	for i := range v.view.pods {
		p := &v.view.pods[i]
		p.held = !p.wanted && m.mayUse(p.name)
	}
}

// mounted returns the set-up of a pod.
func (v *volumeLook) mounted(pod volume.UniquePodName) operationexecutor.MountedVolume {
	for _, mounted := range v.actual.Mounts {
		if mounted.PodName == pod {
			return mounted.MountedVolume
		}
	}
	return operationexecutor.MountedVolume{VolumeName: v.name, PodName: pod}
}

// toAttach returns the volume with the pods that wait for it.
func (v *volumeLook) toAttach(node types.NodeName) operationexecutor.VolumeToAttach {
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

// toMount returns the volume as a pod wants it, with the device that it has here.
func (v *volumeLook) toMount(pod volume.UniquePodName) operationexecutor.VolumeToMount {
	row := *v.wantedBy(pod)
	row.DevicePath = v.actual.DevicePath
	return row
}
