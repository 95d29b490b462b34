package volumemanager

import (
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// broadcast wakes those who wait for a change of a pod's volumes. It costs nothing where nobody waits, and starts no
// goroutine.
type broadcast struct {
	mu          sync.Mutex
	waiting     map[volume.UniquePodName][]chan struct{}
	subscribers subscribers
}

// anyPod is the key of those who wait for a change of any volume. No pod has this name.
const anyPod volume.UniquePodName = ""

// subscribe returns a channel that gets a token with each change from now on; several changes may be one token. cancel
// must be called.
func (b *broadcast) subscribe(pod volume.UniquePodName) (changed <-chan struct{}, cancel func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting == nil {
		b.waiting = make(map[volume.UniquePodName][]chan struct{})
	}
	c := make(chan struct{}, 1)
	b.waiting[pod] = append(b.waiting[pod], c)
	return c, func() { b.unsubscribe(pod, c) }
}

func (b *broadcast) unsubscribe(pod volume.UniquePodName, c chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	waiting := slices.DeleteFunc(b.waiting[pod], func(other chan struct{}) bool { return other == c })
	if b.waiting[pod] = waiting; len(waiting) == 0 {
		delete(b.waiting, pod)
	}
}

// notifyVolume wakes those who wait for any pod, after a change of a volume as a whole.
func (b *broadcast) notifyVolume(name v1.UniqueVolumeName) {
	b.subscribers.tell(topic{volume: name})
	b.notify(anyPod)
}

// notify wakes those who wait for pod, and those who wait for any.
func (b *broadcast) notify(pod volume.UniquePodName) {
	if pod != anyPod {
		b.subscribers.tell(topic{pod: types.UID(pod)})
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, key := range []volume.UniquePodName{pod, anyPod} {
		for _, c := range b.waiting[key] {
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}
}
