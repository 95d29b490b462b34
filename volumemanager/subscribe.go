package volumemanager

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/workqueue"
	"github.com/volumekit/volumekit/volume"
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

// Subscribe returns the changes of the volumes on this node. The sequence begins with every pod and every volume that no
// pod uses, and goes on until ctx ends, or Run does; it can be ranged over several times, each time from the beginning.
//
// Each change holds the state in the moment in which it is yielded. What changes several times before it is yielded is
// yielded once, and the last state always is; one state may be yielded twice. A receiver that takes its time therefore
// holds up nobody and costs no more than a name for each pod. Nothing is polled.
func (m *Manager) Subscribe(ctx context.Context) iter.Seq[Change] {
	return func(yield func(Change) bool) {
		s := &subscription{manager: m, queue: workqueue.New[topic](), unused: make(map[v1.UniqueVolumeName]struct{})}
		defer m.changes.subscribers.join(s.queue)()
		s.queue.AddAll(m.topics())
		select {
		case <-m.stopped:
			s.queue.Add(topicEnd)
		default:
		}
		for {
			t, ok := s.queue.Get(ctx)
			if !ok || t == topicEnd || !s.tell(t, yield) {
				return
			}
		}
	}
}

// topic is what a change is about: a pod, or a volume of any pods or none.
type topic struct {
	pod    types.UID
	volume v1.UniqueVolumeName
}

// topicEnd says that Run has ended.
var topicEnd = topic{}

// topics returns all that there is.
func (m *Manager) topics() []topic {
	var all []topic
	for uid := range m.knownPods() {
		all = append(all, topic{pod: uid})
	}
	slices.SortFunc(all, func(a, b topic) int { return cmp.Compare(a.pod, b.pod) })
	for _, row := range m.actual.GetUnmountedVolumes() {
		all = append(all, topic{volume: row.VolumeName})
	}
	return all
}

// subscription is one loop over the changes.
type subscription struct {
	manager *Manager
	queue   *workqueue.Queue[topic]
	// unused are the volumes that were told of as used by no pod.
	unused map[v1.UniqueVolumeName]struct{}
}

// tell yields where a topic stands. That of a volume is that of its pods, which come later and once, however many of their
// volumes have changed. It returns false when the loop is to end.
func (s *subscription) tell(t topic, yield func(Change) bool) bool {
	if t.pod != "" {
		return yield(Change{PodUID: t.pod, Volumes: s.manager.statusOfPod(t.pod)})
	}
	for _, pod := range s.manager.podsOf(t.volume) {
		s.queue.Add(topic{pod: types.UID(pod)})
	}
	volumes := s.manager.statusOfUnused(t.volume)
	_, told := s.unused[t.volume]
	if len(volumes) == 0 && !told {
		return true
	}
	delete(s.unused, t.volume)
	if len(volumes) > 0 {
		s.unused[t.volume] = struct{}{}
	}
	return yield(Change{Volume: t.volume, Volumes: volumes})
}

// podsOf returns the pods that want a volume, or for which it may be set up.
func (m *Manager) podsOf(name v1.UniqueVolumeName) []volume.UniquePodName {
	pods := m.actual.PodsOfVolume(name)
	for _, row := range m.desired.VolumesToMount(name) {
		pods = append(pods, row.PodName)
	}
	slices.Sort(pods)
	return slices.Compact(pods)
}

// subscribers are those who are told what has changed. It costs one load where there is nobody. The zero value is ready.
type subscribers struct {
	mu sync.Mutex
	// all is replaced, never changed.
	all atomic.Pointer[[]*workqueue.Queue[topic]]
}

// join enters a queue, which gets what changes from now on; leave must be called.
func (f *subscribers) join(q *workqueue.Queue[topic]) (leave func()) {
	f.change(func(all []*workqueue.Queue[topic]) []*workqueue.Queue[topic] { return append(all, q) })
	return func() {
		f.change(func(all []*workqueue.Queue[topic]) []*workqueue.Queue[topic] {
			return slices.DeleteFunc(all, func(other *workqueue.Queue[topic]) bool { return other == q })
		})
	}
}

func (f *subscribers) change(do func(all []*workqueue.Queue[topic]) []*workqueue.Queue[topic]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := do(slices.Clone(f.queues()))
	f.all.Store(&next)
}

func (f *subscribers) queues() []*workqueue.Queue[topic] {
	if all := f.all.Load(); all != nil {
		return *all
	}
	return nil
}

// tell queues a topic for everybody.
func (f *subscribers) tell(t topic) {
	for _, q := range f.queues() {
		q.Add(t)
	}
}
