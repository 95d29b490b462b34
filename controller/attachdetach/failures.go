package attachdetach

import (
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/workqueue"
)

// failure is why an attachment is not what it should be.
type failure struct {
	// of is what could not be done.
	of       step
	err      error
	attempts int
	until    time.Time // zero: it does not wait for a time
}

// failures are the attachments that are not what they should be, and those that wait for room on a node. Its methods may be called from
// several goroutines at once.
type failures struct {
	dirty *workqueue.Queue[attachment]

	mu     sync.Mutex // no call that waits is made under it
	known  map[attachment]failure
	noRoom map[types.NodeName]map[v1.UniqueVolumeName]struct{}
}

func newFailures(dirty *workqueue.Queue[attachment]) *failures {
	return &failures{dirty: dirty, known: map[attachment]failure{}, noRoom: map[types.NodeName]map[v1.UniqueVolumeName]struct{}{}}
}

// record stores why an attachment is not in its desired state, and retries it when its back-off has elapsed.
func (f *failures) record(a attachment, why failure) {
	f.mu.Lock()
	f.known[a] = why
	f.mu.Unlock()
	if !why.until.IsZero() {
		f.dirty.AddAt(a, why.until)
	}
}

// forget says that an attachment is what it should be.
func (f *failures) forget(a attachment) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.known, a)
	if waiting := f.noRoom[a.node]; waiting != nil {
		delete(waiting, a.volume)
		if len(waiting) == 0 {
			delete(f.noRoom, a.node)
		}
	}
}

// of returns why an attachment is not what it should be; the zero failure when nothing is known against it.
func (f *failures) of(a attachment) failure {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known[a]
}

// waitForRoom makes a volume wait until another one is detached from the node. The attachment is decided once more when the wait begins:
// a detach between the attempt and the wait has woken no attachment.
func (f *failures) waitForRoom(a attachment, err error) {
	f.record(a, failure{err: err})
	f.mu.Lock()
	waiting := f.noRoom[a.node]
	if waiting == nil {
		waiting = map[v1.UniqueVolumeName]struct{}{}
		f.noRoom[a.node] = waiting
	}
	_, waits := waiting[a.volume]
	waiting[a.volume] = struct{}{}
	f.mu.Unlock()
	if !waits {
		f.dirty.Add(a)
	}
}

// roomOn queues the volumes that wait for room on a node.
func (f *failures) roomOn(node types.NodeName) {
	f.mu.Lock()
	waiting := f.noRoom[node]
	delete(f.noRoom, node)
	f.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(waiting)) {
		f.dirty.Add(attachment{name, node})
	}
}
