// Package changes tells those who wait for volumes, and those who follow them, that something has changed.
package changes

import (
	"slices"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/workqueue"
	"github.com/volumekit/volumekit/volume"
)

// Hub wakes those who wait for a change of a pod's volumes, and queues each change for those who follow all. It costs
// nothing where nobody waits, and starts no goroutine. The zero value is ready.
type Hub struct {
	mu      sync.Mutex
	waiting map[volume.UniquePodName][]chan struct{}

	joining sync.Mutex
	// followers are replaced, never changed. A change costs one load where there are none.
	followers atomic.Pointer[[]*workqueue.Queue[Topic]]
}

// Topic is what a change is about: a pod, or a volume of any pods or none. The zero value says that there are no more.
type Topic struct {
	// Pod is the UID of the pod; empty for a volume.
	Pod types.UID
	// Volume is the unique name of the volume; empty for a pod.
	Volume v1.UniqueVolumeName
}

// AnyPod is the key of those who wait for a change of any volume. No pod has this name.
const AnyPod volume.UniquePodName = ""

// Subscribe returns a channel that gets a token with each change from now on; several changes may be one token. cancel
// must be called.
func (h *Hub) Subscribe(pod volume.UniquePodName) (changed <-chan struct{}, cancel func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting == nil {
		h.waiting = make(map[volume.UniquePodName][]chan struct{})
	}
	c := make(chan struct{}, 1)
	h.waiting[pod] = append(h.waiting[pod], c)
	return c, func() { h.unsubscribe(pod, c) }
}

func (h *Hub) unsubscribe(pod volume.UniquePodName, c chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	waiting := slices.DeleteFunc(h.waiting[pod], func(other chan struct{}) bool { return other == c })
	if h.waiting[pod] = waiting; len(waiting) == 0 {
		delete(h.waiting, pod)
	}
}

// NotifyVolume wakes those who wait for any pod, after a change of a volume as a whole.
func (h *Hub) NotifyVolume(name v1.UniqueVolumeName) {
	h.Tell(Topic{Volume: name})
	h.Notify(AnyPod)
}

// Notify wakes those who wait for pod, and those who wait for any.
func (h *Hub) Notify(pod volume.UniquePodName) {
	if pod != AnyPod {
		h.Tell(Topic{Pod: types.UID(pod)})
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, key := range []volume.UniquePodName{pod, AnyPod} {
		for _, c := range h.waiting[key] {
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}
}

// Join enters a queue, which gets what changes from now on; leave must be called.
func (h *Hub) Join(q *workqueue.Queue[Topic]) (leave func()) {
	h.change(func(all []*workqueue.Queue[Topic]) []*workqueue.Queue[Topic] { return append(all, q) })
	return func() {
		h.change(func(all []*workqueue.Queue[Topic]) []*workqueue.Queue[Topic] {
			return slices.DeleteFunc(all, func(other *workqueue.Queue[Topic]) bool { return other == q })
		})
	}
}

func (h *Hub) change(do func(all []*workqueue.Queue[Topic]) []*workqueue.Queue[Topic]) {
	h.joining.Lock()
	defer h.joining.Unlock()
	next := do(slices.Clone(h.queues()))
	h.followers.Store(&next)
}

func (h *Hub) queues() []*workqueue.Queue[Topic] {
	if all := h.followers.Load(); all != nil {
		return *all
	}
	return nil
}

// Tell queues a topic for all who have joined.
func (h *Hub) Tell(t Topic) {
	for _, q := range h.queues() {
		q.Add(t)
	}
}

// Followers returns how many queues have joined.
func (h *Hub) Followers() int { return len(h.queues()) }

// IsAwaited reports whether somebody waits for a change of a pod.
func (h *Hub) IsAwaited(pod volume.UniquePodName) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.waiting[pod]) > 0
}
