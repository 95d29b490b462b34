package keyed

import (
	"sync"
	"time"

	"github.com/volumekit/volumekit/internal/backoff"
)

// Key is what an operation needs for itself. See the package comment.
type Key struct {
	// Volume names the volume; a key with none meets no other key.
	Volume string
	// Pod is the pod; empty stands for all pods.
	Pod string
	// Node is the node; empty stands for all nodes.
	Node string
}

// Meets reports whether operations with these keys exclude each other.
func (k Key) Meets(other Key) bool {
	return k.Volume != "" && k.Volume == other.Volume && overlap(k.Pod, other.Pod) && overlap(k.Node, other.Node)
}

func overlap(a, b string) bool { return a == b || a == "" || b == "" }

// Operation is what back-off is kept by.
type Operation struct {
	// Key says whose failure it is. Here an empty Pod or Node stands for itself, not for all.
	Key Key
	// Kind is the kind of operation.
	Kind string
}

// Lock is the right of one operation to its key. Fill in what is exported, but for Started; it is held from [Table.Begin]
// to [Table.End], and must not be moved or changed meanwhile.
type Lock struct {
	// Operation is what the operation's failures count for.
	Operation Operation
	// AllPods and AllNodes say that the key is that of the operation without its pod, or without its node.
	AllPods, AllNodes bool
	// Started is when the lock was made; Begin sets it.
	Started time.Time
}

// Key returns what the operation needs for itself.
func (c *Lock) Key() Key {
	k := c.Operation.Key
	if c.AllPods {
		k.Pod = ""
	}
	if c.AllNodes {
		k.Node = ""
	}
	return k
}

// Failure is how often and why an operation failed.
type Failure struct {
	// Attempts is how often it failed in a row.
	Attempts int
	// Until is when it may start again.
	Until time.Time
	// Err is why it failed last.
	Err error
}

// Refusal says why an operation may not start: either Running is set, or Failure is.
type Refusal struct {
	// Running is a lock that is in the way; nil when none is.
	Running *Lock
	// Failure is what the operation has to wait for; nil when something is in the way.
	Failure *Failure
}

// Table holds the locks of running operations and the failures of past ones. Make it with [New].
type Table struct {
	policy backoff.Policy

	mu      sync.Mutex
	running map[string]locks    // by volume
	failed  map[string]failures // by volume
	// swept is when the failures were last looked through for those that nobody came back for.
	swept time.Time
}

// New returns an empty table whose failures wait as policy says.
func New(policy backoff.Policy) *Table {
	return &Table{policy: policy.WithDefaults(), running: map[string]locks{}, failed: map[string]failures{}}
}

// Begin locks the key of lock for its operation. It returns a refusal instead when a lock that the key
// meets is held, or when the operation failed and has not waited long enough. A lock that is in the way is told before a
// failure.
func (t *Table) Begin(lock *Lock) *Refusal {
	lock.Started = time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	volume := lock.Operation.Key.Volume
	held := t.running[volume]
	if c := held.meeting(lock.Key()); c != nil {
		return &Refusal{Running: c}
	}
	if f := t.waits(lock); f != nil {
		return &Refusal{Failure: f}
	}
	if volume != "" {
		t.running[volume] = held.with(lock)
	}
	return nil
}

// waits returns the failure that the operation of lock has to wait for, or nil.
func (t *Table) waits(lock *Lock) *Failure {
	f, ok := t.failed[lock.Operation.Key.Volume].of(lock.Operation)
	if !ok || !lock.Started.Before(f.Until) {
		return nil
	}
	waits := f // Only what waits is on the heap.
	return &waits
}

// Fail counts a failure of an operation, which then waits for atLeast, and returns it. It need not hold a lock, so that what
// fails before it starts waits as well.
func (t *Table) Fail(operation Operation, err error, atLeast time.Duration) Failure {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweep(now)
	ofVolume := t.failed[operation.Key.Volume]
	if ofVolume == nil {
		ofVolume = failures{}
		t.failed[operation.Key.Volume] = ofVolume
	}
	f, _ := ofVolume.of(operation)
	f.Attempts++
	f.Until = now.Add(max(atLeast, t.policy.Delay(f.Attempts)))
	f.Err = err
	ofVolume.set(operation, f)
	return f
}

// Succeed forgets every failure of the key of the operation of lock, of each kind: a mount that worked ends the failures of
// an unmount as well.
func (t *Table) Succeed(lock *Lock) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(lock.Operation.Key.Volume, func(f failures) { delete(f, lock.Operation.place()) })
}

// End gives the key of lock back. It must be called once.
func (t *Table) End(lock *Lock) {
	volume := lock.Operation.Key.Volume
	if volume == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if left := t.running[volume].without(lock); left.isEmpty() {
		delete(t.running, volume)
	}
}

// Pending returns a lock that key meets, or nil.
func (t *Table) Pending(key Key) *Lock {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.running[key.Volume].meeting(key)
}

// Forget forgets the failures of key, of each kind. An empty Pod or Node stands for all of them.
func (t *Table) Forget(key Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(key.Volume, func(f failures) { f.forget(place{key.Pod, key.Node}) })
}

// Len returns the number of volumes of which the table holds anything.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.running)
	for volume := range t.failed {
		if _, ok := t.running[volume]; !ok {
			n++
		}
	}
	return n
}

// forget drops failures of a volume, and the volume when none is left.
func (t *Table) forget(volume string, drop func(f failures)) {
	f := t.failed[volume]
	drop(f)
	if len(f) == 0 {
		delete(t.failed, volume)
	}
}

// sweep drops the failures that have waited longer than any wait lasts since they might have been tried again: their
// operation is gone. It looks through all failures, once in the longest wait.
func (t *Table) sweep(now time.Time) {
	if now.Sub(t.swept) < t.policy.Max {
		return
	}
	t.swept = now
	for volume := range t.failed {
		t.forget(volume, func(f failures) { f.dropOld(now.Add(-t.policy.Max)) })
	}
}
