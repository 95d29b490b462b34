package volumemanager

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// broadcast wakes those who wait for a change of a pod's volumes. It costs nothing where nobody waits, and starts no
// goroutine.
type broadcast struct {
	mu          sync.Mutex
	waiting     map[volume.UniquePodName]map[chan struct{}]struct{}
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
		b.waiting = make(map[volume.UniquePodName]map[chan struct{}]struct{})
	}
	if b.waiting[pod] == nil {
		b.waiting[pod] = make(map[chan struct{}]struct{})
	}
	c := make(chan struct{}, 1)
	b.waiting[pod][c] = struct{}{}
	return c, func() { b.unsubscribe(pod, c) }
}

func (b *broadcast) unsubscribe(pod volume.UniquePodName, c chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.waiting[pod], c)
	if len(b.waiting[pod]) == 0 {
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
		for c := range b.waiting[key] {
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}
}
