package volumemanager

import (
	"cmp"
	"context"
	"iter"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/workqueue"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/changes"
)

// Change says where the volumes of one pod stand now, or one volume that no pod uses.
type Change struct {
	// PodUID is the UID of the pod; empty when the change is about a volume that no pod uses.
	PodUID types.UID
	// Volume is the unique name of a volume that no pod uses; empty when the change is about a pod.
	Volume v1.UniqueVolumeName
	// Volumes are all volumes of the pod, as [Manager.PodStatus] returns them, or the one volume. They are empty when
	// nothing of the pod is left on this node, or when the volume is gone or used by a pod again.
	Volumes []VolumeStatus
}

// Subscribe returns the changes of the volumes on this node. The sequence begins with every pod and every volume that no pod
// uses. It goes on until ctx or Run ends. The caller can range over it several times, each time from the beginning.
//
// Each change holds the state at the moment at which it is yielded. Several changes before that are yielded as one, and the
// last state is always yielded; one state may be yielded twice. A slow receiver therefore delays no other, and costs no more
// than a name for each pod. Nothing is polled.
func (m *Manager) Subscribe(ctx context.Context) iter.Seq[Change] {
	return func(yield func(Change) bool) {
		s := &subscription{manager: m, queue: workqueue.New[changes.Topic](), unused: make(map[v1.UniqueVolumeName]struct{})}
		defer m.changes.Join(s.queue)()
		s.queue.AddAll(m.view.topics())
		select {
		case <-m.run.stopped:
			s.queue.Add((changes.Topic{}))
		default:
		}
		for {
			t, ok := s.queue.Get(ctx)
			if !ok || t == (changes.Topic{}) || !s.tell(t, yield) {
				return
			}
		}
	}
}

// topics returns all that there is.
func (n *nodeView) topics() []changes.Topic {
	var all []changes.Topic
	for uid := range n.knownPods() {
		all = append(all, changes.Topic{Pod: uid})
	}
	slices.SortFunc(all, func(a, b changes.Topic) int { return cmp.Compare(a.Pod, b.Pod) })
	for _, row := range n.actual.GetUnmountedVolumes() {
		all = append(all, changes.Topic{Volume: row.VolumeName})
	}
	return all
}

// subscription is one loop over the changes.
type subscription struct {
	manager *Manager
	queue   *workqueue.Queue[changes.Topic]
	// unused are the volumes that were told of as used by no pod.
	unused map[v1.UniqueVolumeName]struct{}
}

// tell yields where a topic stands. That of a volume is that of its pods, which come later and once, however many of their
// volumes have changed. It returns false when the loop is to end.
func (s *subscription) tell(t changes.Topic, yield func(Change) bool) bool {
	if t.Pod != "" {
		return yield(Change{PodUID: t.Pod, Volumes: s.manager.view.statusOfPod(t.Pod)})
	}
	for _, pod := range s.manager.view.podsOf(t.Volume) {
		s.queue.Add(changes.Topic{Pod: types.UID(pod)})
	}
	volumes := s.manager.view.statusOfUnused(t.Volume)
	_, told := s.unused[t.Volume]
	if len(volumes) == 0 && !told {
		return true
	}
	delete(s.unused, t.Volume)
	if len(volumes) > 0 {
		s.unused[t.Volume] = struct{}{}
	}
	return yield(Change{Volume: t.Volume, Volumes: volumes})
}

// podsOf returns the pods that want a volume, or for which it may be set up.
func (n *nodeView) podsOf(name v1.UniqueVolumeName) []volume.UniquePodName {
	pods := n.actual.PodsOfVolume(name)
	for _, row := range n.desired.VolumesToMount(name) {
		pods = append(pods, row.PodName)
	}
	slices.Sort(pods)
	return slices.Compact(pods)
}
