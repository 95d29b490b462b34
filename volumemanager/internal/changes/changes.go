// Package changes notifies waiters and followers that a volume has changed.
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

// Hub wakes the waiters for a pod when a volume of that pod changes, and queues every change for the followers. A change
// costs almost nothing when there are none. Hub starts no goroutine. The zero value is ready.
type Hub struct {
	mu      sync.Mutex
	waiting map[volume.UniquePodName][]chan struct{}

	joining sync.Mutex
	// followers is replaced as a whole, never changed in place. Without followers a change costs one atomic load.
	followers atomic.Pointer[[]*workqueue.Queue[Topic]]
}

// Topic names what has changed: a pod, or a volume as a whole. The zero value means that no more changes follow.
type Topic struct {
	// Pod is the UID of the pod; empty for a volume.
	Pod types.UID
	// Volume is the unique name of the volume; empty for a pod.
	Volume v1.UniqueVolumeName
}

// AnyPod is the key of the waiters for a change of any volume. No pod has this name.
const AnyPod volume.UniquePodName = ""

// Subscribe returns a channel that receives a token after each change from now on. Several changes may share one token. The
// caller must call cancel.
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

// NotifyVolume reports a change of a volume as a whole: to the followers, and to the waiters for any pod.
func (h *Hub) NotifyVolume(name v1.UniqueVolumeName) {
	h.Publish(Topic{Volume: name})
	h.Notify(AnyPod)
}

// Notify reports a change of a pod's volumes: to the followers, to the waiters for this pod, and to the waiters for any pod.
// With AnyPod it wakes only the waiters for any pod.
func (h *Hub) Notify(pod volume.UniquePodName) {
	if pod != AnyPod {
		h.Publish(Topic{Pod: types.UID(pod)})
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

// Join adds a follower's queue, which receives every change from now on. The caller must call leave.
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

// Publish adds a topic to the queues of all followers.
func (h *Hub) Publish(t Topic) {
	for _, q := range h.queues() {
		q.Add(t)
	}
}

// Followers returns the number of queues that have joined.
func (h *Hub) Followers() int { return len(h.queues()) }

// IsAwaited reports whether any caller waits for a change of a pod.
func (h *Hub) IsAwaited(pod volume.UniquePodName) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.waiting[pod]) > 0
}
