package keyed

import (
	"sync"
	"time"

	"github.com/volumekit/volumekit/internal/backoff"
)

// Key is what an operation locks. See the package comment.
type Key struct {
	// Volume names the volume. A key without a volume meets no other key.
	Volume string
	// Pod is the pod. Empty means all pods.
	Pod string
	// Node is the node. Empty means all nodes.
	Node string
}

// Meets reports whether operations with these keys exclude each other.
func (k Key) Meets(other Key) bool {
	return k.Volume != "" && k.Volume == other.Volume && overlap(k.Pod, other.Pod) && overlap(k.Node, other.Node)
}

func overlap(a, b string) bool { return a == b || a == "" || b == "" }

// Operation identifies the failures that count together for the back-off.
type Operation struct {
	// Key is the key of the failures. Here an empty Pod or Node does not mean all of them.
	Key Key
	// Kind is the kind of operation.
	Kind string
}

// Lock is the right of one operation to its key. Set the exported fields other than Started. The operation holds the lock
// from [Table.Begin] to [Table.End]. Do not move or change it meanwhile.
type Lock struct {
	// Operation identifies the failures of the operation.
	Operation Operation
	// AllPods and AllNodes widen the lock's key from the pod, or node, of Operation to all pods, or nodes.
	AllPods, AllNodes bool
	// Started is the time of [Table.Begin], which sets it.
	Started time.Time
}

// Key returns what the operation locks.
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

// Failure is the number of failures of an operation, and the last one.
type Failure struct {
	// Attempts is the number of failures in a row.
	Attempts int
	// Until is the time at which it may start again.
	Until time.Time
	// Err is the error of the last failure.
	Err error
}

// Refusal says why an operation may not start. Either Running or Failure is set.
type Refusal struct {
	// Running is a held lock whose key meets that of the operation; nil if there is none.
	Running *Lock
	// Failure is the failure after which the operation still has to wait; nil if Running is set.
	Failure *Failure
}

// Table holds the locks of running operations and the failures of past ones. Make it with [New].
type Table struct {
	policy backoff.Policy

	mu      sync.Mutex
	running map[string]locks    // by volume
	failed  map[string]failures // by volume
	// swept is the time of the last sweep.
	swept time.Time
}

// New returns an empty table. policy is the wait after failures.
func New(policy backoff.Policy) *Table {
	return &Table{policy: policy.WithDefaults(), running: map[string]locks{}, failed: map[string]failures{}}
}

// Begin takes lock for its operation. It returns a refusal instead if a lock whose key meets this one is held, or if the
// operation failed and has not waited long enough. If both are so, the refusal names the lock.
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
	waits := f // This copy moves to the heap only if there is a wait.
	return &waits
}

// Fail counts a failure of an operation and returns it. The operation then waits at least for atLeast. It need not hold a
// lock, so failures before its start count too.
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

// Succeed forgets all failures of the operation's key, of every kind. So a successful mount also ends the back-off of an
// unmount.
func (t *Table) Succeed(lock *Lock) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(lock.Operation.Key.Volume, func(f failures) { delete(f, lock.Operation.podAndNode()) })
}

// End releases the lock. Call it once.
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

// Pending returns a held lock that key meets, or nil.
func (t *Table) Pending(key Key) *Lock {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.running[key.Volume].meeting(key)
}

// Forget forgets the failures of key, of every kind. An empty Pod or Node means all of them.
func (t *Table) Forget(key Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(key.Volume, func(f failures) { f.forget(podAndNode{key.Pod, key.Node}) })
}

// Len returns the number of volumes for which the table holds a lock or a failure.
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

// forget removes failures of a volume with drop, and removes the volume if it has no others.
func (t *Table) forget(volume string, drop func(f failures)) {
	f := t.failed[volume]
	drop(f)
	if len(f) == 0 {
		delete(t.failed, volume)
	}
}

// sweep drops failures of operations that did not come back: their wait ended longer ago than the longest wait of the
// policy. It visits all failures, at most once in that time.
func (t *Table) sweep(now time.Time) {
	if now.Sub(t.swept) < t.policy.Max {
		return
	}
	t.swept = now
	for volume := range t.failed {
		t.forget(volume, func(f failures) { f.dropOld(now.Add(-t.policy.Max)) })
	}
}
