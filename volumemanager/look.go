package volumemanager

import (
	"cmp"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
	"github.com/volumekit/volumekit/volumemanager/internal/populator"
	"github.com/volumekit/volumekit/volumemanager/internal/reconciler"
)

// Status returns where every volume on the node stands. It does no I/O, waits for nothing and calls no plugin.
func (m *Manager) Status() NodeStatus {
	status := NodeStatus{Planned: m.reconciler.Planned(), Reused: m.recovery.Reused(), LostData: lostDataOf(m.health.LostData())}
	status.Running = m.run.running.Load()
	m.view.addFound(&status)
	pods, volumes := m.view.podsInOrder()
	status.Volumes = make([]VolumeStatus, 0, volumes)
	for _, pod := range pods {
		status.Volumes = m.view.appendStatusOfPod(status.Volumes, pod.uid)
	}
	// The rows are in this order already, but for those of pods that were removed.
	slices.SortFunc(status.Volumes, func(a, b VolumeStatus) int {
		return cmp.Or(compareNames(a.PodName, b.PodName), cmp.Compare(a.PodUID, b.PodUID), cmp.Compare(a.OuterName, b.OuterName), cmp.Compare(a.Volume, b.Volume))
	})
	for _, row := range m.actual.GetUnmountedVolumes() {
		status.Volumes = append(status.Volumes, m.view.statusOfUnused(row.VolumeName)...)
	}
	return status
}

// knownPods returns the pods that were added, or that have, or may have, a volume.
func (n *nodeView) knownPods() sets.Set[types.UID] {
	uids := sets.New(n.populator.UIDs()...)
	for _, podName := range n.reconciler.PodsOfOperations() {
		uids.Insert(types.UID(podName))
	}
	for _, podName := range n.actual.GetPods() {
		uids.Insert(types.UID(podName))
	}
	return uids
}

// podInOrder is a pod and its name. The name is empty if the pod was not added.
type podInOrder struct {
	uid  types.UID
	name types.NamespacedName
}

// podsInOrder returns the known pods by name and UID, and how many volumes those that were added use.
func (n *nodeView) podsInOrder() (pods []podInOrder, volumes int) {
	for uid := range n.knownPods() {
		pod := podInOrder{uid: uid}
		if entry := n.populator.Pod(uid); entry != nil {
			pod.name = store.NameOf(entry.Pod)
			volumes += len(entry.Volumes)
		}
		pods = append(pods, pod)
	}
	slices.SortFunc(pods, func(a, b podInOrder) int { return cmp.Or(compareNames(a.name, b.name), cmp.Compare(a.uid, b.uid)) })
	return pods, volumes
}

// compareNames orders names by namespace, and then by name.
func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// Hung returns the abandoned calls of plugins that still run, the oldest first: what hangs, since when, and on request the
// stack of its goroutine.
func (m *Manager) Hung() []operationexecutor.HungCall { return m.executor.Hung() }

// PodStatus returns where the volumes of one pod stand, by outer name: those that it uses, and those that are still to be
// taken away. It is empty for a pod that is not known.
func (m *Manager) PodStatus(uid types.UID) []VolumeStatus { return m.view.statusOfPod(uid) }

func (n *nodeView) statusOfPod(uid types.UID) []VolumeStatus { return n.appendStatusOfPod(nil, uid) }

// appendStatusOfPod adds the rows of a pod to rows, by outer name.
func (n *nodeView) appendStatusOfPod(rows []VolumeStatus, uid types.UID) []VolumeStatus {
	podName, first := volume.UniquePodName(uid), len(rows)
	entry := n.populator.Pod(uid)
	if entry != nil {
		for _, v := range entry.Volumes {
			rows = append(rows, n.statusOfWanted(entry.Pod, v))
		}
	}
	var leaving []v1.UniqueVolumeName
	for _, name := range n.actual.GetVolumeNamesForPod(podName) {
		if entry.Uses(name) {
			continue
		}
		if mounted, ok := n.actual.GetMountedVolume(name, podName); ok {
			leaving = append(leaving, name)
			rows = append(rows, n.statusOfUnwanted(&mounted)...)
		}
	}
	for _, name := range n.reconciler.VolumesOfOperations(podName) {
		if !slices.Contains(leaving, name) && !entry.Uses(name) {
			rows = append(rows, n.statusOfRemoved(uid, name))
		}
	}
	slices.SortFunc(rows[first:], func(a, b VolumeStatus) int {
		return cmp.Or(cmp.Compare(a.OuterName, b.OuterName), cmp.Compare(a.Volume, b.Volume))
	})
	return rows
}

// statusOfWanted returns where a volume stands that the pod uses.
func (n *nodeView) statusOfWanted(pod *v1.Pod, v populator.Volume) VolumeStatus {
	s := VolumeStatus{
		PodUID: pod.UID, PodName: store.NameOf(pod), OuterName: v.Outer, Volume: v.Name, Plugin: v.Plugin,
		Wanted: true, Phase: PhaseWaiting, Err: v.Err, WantedSince: v.Wanted, ResolvedSince: v.Resolved,
	}
	if v.Name == "" {
		s.Phase = PhaseUnresolved
		return s
	}
	s.ReadOnly = v.ReadOnly
	n.fill(&s)
	return s
}

// statusOfUnwanted returns where a volume stands that is to be taken away from a pod.
func (n *nodeView) statusOfUnwanted(mounted *cache.MountedVolume) []VolumeStatus {
	rows := make([]VolumeStatus, 0, 1)
	for _, outer := range mounted.OuterVolumeSpecNames {
		s := VolumeStatus{
			PodUID: mounted.PodUID, OuterName: outer, Volume: mounted.VolumeName, Plugin: mounted.PluginName,
			ReadOnly: mounted.VolumeSpec.ReadOnly,
		}
		if mounted.Pod != nil {
			s.PodName = store.NameOf(mounted.Pod)
		}
		n.fill(&s)
		rows = append(rows, s)
	}
	return rows
}

// statusOfRemoved returns where a volume stands that is still being set up for a pod that was removed.
func (n *nodeView) statusOfRemoved(uid types.UID, name v1.UniqueVolumeName) VolumeStatus {
	s := VolumeStatus{PodUID: uid, Volume: name, Phase: PhaseWaiting}
	s.Plugin, _, _ = volume.SplitUniqueName(name) // Every volume that was planned has a name of that form.
	n.fill(&s)
	return s
}

// statusOfUnused returns where a volume stands that is here and that no pod uses or wants; nothing for any other.
func (n *nodeView) statusOfUnused(name v1.UniqueVolumeName) []VolumeStatus {
	row, ok := n.actual.GetAttachedVolume(name)
	if !ok || row.PodCount > 0 || n.desired.VolumeExists(name) {
		return nil
	}
	s := VolumeStatus{Volume: name, Plugin: row.PluginName, Phase: PhaseReleased}
	n.fill(&s)
	return []VolumeStatus{s}
}

// fill adds what the actual state and the operations say of a volume and a pod. Where they disagree, because an
// operation has just ended, the actual state is right.
func (n *nodeView) fill(s *VolumeStatus) {
	podName := volume.UniquePodName(s.PodUID)
	s.Conditions = n.conditionsOf(podvolume.Key{Volume: s.Volume, Pod: podName})
	leaving := n.reconciler.IsTearingDown(s.Volume, podName)
	if row, ok := n.actual.GetAttachedVolume(s.Volume); ok {
		s.DevicePath, s.DeviceMountPath = row.DevicePath, row.DeviceMountPath
		s.Block = volume.IsBlock(row.VolumeSpec)
	}
	mounted, _ := n.actual.GetMountedVolume(s.Volume, podName)
	s.Path = pathOf(mounted)
	switch mounted.State {
	case operationexecutor.VolumeMounted:
		s.Phase = PhaseMounted
		s.ReadOnly = s.ReadOnly || mounted.Mounter != nil && mounted.Mounter.GetAttributes().ReadOnly
	case operationexecutor.VolumeMountUncertain:
		s.Phase = PhaseUncertain
	default:
	}
	stale := s.Wanted && mounted.State != operationexecutor.VolumeNotMounted && !n.isCurrent(&mounted)
	if leaving || stale {
		s.Phase = PhaseUnmounting
	}
	live := s.Wanted && s.Phase == PhaseMounted
	if live && !mounted.RemountRequired && !n.expansion.IsExpanding(s.Volume) {
		s.Err = cmp.Or(s.Err, n.nodeStatus.Withdrawn(s.Volume))
		return
	}
	n.fillWork(s, podName)
	s.Conditions = append(s.Conditions, hungBefore(n.executor, podvolume.Key{Volume: s.Volume, Pod: podName})...)
	if live {
		// It can be used while it is refreshed.
		s.Phase = PhaseMounted
	}
}

// fillWork adds what the operations say.
func (n *nodeView) fillWork(s *VolumeStatus, podName volume.UniquePodName) {
	for _, op := range n.reconciler.Operations(s.Volume, podName) {
		if op.Handle != nil {
			s.runs(op, podName)
		}
	}
	for _, pod := range []volume.UniquePodName{"", podName} {
		if f, ok := n.reconciler.Failure(podvolume.Key{Volume: s.Volume, Pod: pod}); ok && (s.Err == nil || pod != "") {
			s.Err, s.Attempts = f.Err, f.Attempts
			if !f.IsOver() {
				s.NextTry = f.Until
			}
		}
	}
}

// runs adds what one operation says. One that stages or sets the volume up for another pod is none of this pod's.
func (s *VolumeStatus) runs(op reconciler.Operation, podName volume.UniquePodName) {
	info := op.Handle.Info()
	if info.PodName != "" && info.PodName != podName {
		s.waitsFor(op, info)
		return
	}
	select {
	case <-op.Handle.Done():
		if err := op.Handle.Err(); err != nil {
			s.Err = err
		}
	default:
		s.Since, s.Phase = info.Started, phaseOf[info.Kind]
	}
}

// waitsFor says that a volume waits for an operation for another pod, which has the volume to itself.
func (s *VolumeStatus) waitsFor(op reconciler.Operation, info operationexecutor.OperationInfo) {
	if op.Whole && s.Wanted && s.Err == nil {
		s.Err = &volume.PendingError{
			Op: string(info.Kind), Running: fmt.Sprintf("%s for pod %q", info.Kind, info.PodName), Volume: s.Volume, Since: info.Started,
		}
	}
}

// pathOf returns where a volume is, or may be, set up.
func pathOf(mounted cache.MountedVolume) string {
	if mounted.Mounter == nil {
		return mounted.MountPath // It is a block volume, or was found after a restart.
	}
	return mounted.Mounter.GetPath()
}

// allVolumes returns the names of all volumes that are wanted or known.
func (n *nodeView) allVolumes() []v1.UniqueVolumeName {
	names := append(n.desired.GetVolumeNames(), n.actual.GetVolumeNames()...)
	slices.Sort(names)
	return slices.Compact(names)
}
