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

// Subject is what back-off is kept by.
type Subject struct {
	// Key says whose failure it is. Here an empty Pod or Node stands for itself, not for all.
	Key Key
	// Kind is the kind of operation.
	Kind string
}

// Claim is the right of one operation to its key. Fill in what is exported, but for Started; it is held from [Table.Begin]
// to [Table.End], and must not be moved or changed meanwhile.
type Claim struct {
	// Subject is what the operation's failures count for.
	Subject Subject
	// AllPods and AllNodes say that the key is that of the subject without its pod, or without its node.
	AllPods, AllNodes bool
	// Started is when the claim was made; Begin sets it.
	Started time.Time
}

// Key returns what the operation needs for itself.
func (c *Claim) Key() Key {
	k := c.Subject.Key
	if c.AllPods {
		k.Pod = ""
	}
	if c.AllNodes {
		k.Node = ""
	}
	return k
}

// Failure is how often and why a subject failed.
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
	// Running is a claim that is in the way; nil when none is.
	Running *Claim
	// Failure is what the subject has to wait for; nil when something is in the way.
	Failure *Failure
}

// Table holds the claims of running operations and the failures of past ones. Make it with [New].
type Table struct {
	policy backoff.Policy

	mu      sync.Mutex
	running map[string]claims   // by volume
	failed  map[string]failures // by volume
	// swept is when the failures were last looked through for those that nobody came back for.
	swept time.Time
}

// New returns an empty table whose failures wait as policy says.
func New(policy backoff.Policy) *Table {
	return &Table{policy: policy.WithDefaults(), running: map[string]claims{}, failed: map[string]failures{}}
}

// Begin claims the key of claim for an operation of its subject. It returns a refusal instead when a claim that the key
// meets is held, or when the subject failed and has not waited long enough. A claim that is in the way is told before a
// failure.
func (t *Table) Begin(claim *Claim) *Refusal {
	claim.Started = time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	volume := claim.Subject.Key.Volume
	held := t.running[volume]
	if c := held.meeting(claim.Key()); c != nil {
		return &Refusal{Running: c}
	}
	if f := t.waits(claim); f != nil {
		return &Refusal{Failure: f}
	}
	if volume != "" {
		t.running[volume] = held.with(claim)
	}
	return nil
}

// waits returns the failure that the subject of claim has to wait for, or nil.
func (t *Table) waits(claim *Claim) *Failure {
	f, ok := t.failed[claim.Subject.Key.Volume].of(claim.Subject)
	if !ok || !claim.Started.Before(f.Until) {
		return nil
	}
	waits := f // Only what waits is on the heap.
	return &waits
}

// Fail counts a failure of a subject, which then waits for atLeast, and returns it. It need not hold a claim, so that what
// fails before it starts waits as well.
func (t *Table) Fail(subject Subject, err error, atLeast time.Duration) Failure {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweep(now)
	ofVolume := t.failed[subject.Key.Volume]
	if ofVolume == nil {
		ofVolume = failures{}
		t.failed[subject.Key.Volume] = ofVolume
	}
	f, _ := ofVolume.of(subject)
	f.Attempts++
	f.Until = now.Add(max(atLeast, t.policy.Delay(f.Attempts)))
	f.Err = err
	ofVolume.set(subject, f)
	return f
}

// Succeed forgets every failure of the key of the subject of claim, of each kind: a mount that worked ends the troubles of
// an unmount as well.
func (t *Table) Succeed(claim *Claim) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(claim.Subject.Key.Volume, func(f failures) { delete(f, claim.Subject.place()) })
}

// End gives the key of claim back. It must be called once.
func (t *Table) End(claim *Claim) {
	volume := claim.Subject.Key.Volume
	if volume == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if left := t.running[volume].without(claim); left.isEmpty() {
		delete(t.running, volume)
	}
}

// Pending returns a claim that key meets, or nil.
func (t *Table) Pending(key Key) *Claim {
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
// subject is gone. It looks through all failures, once in the longest wait.
func (t *Table) sweep(now time.Time) {
	if now.Sub(t.swept) < t.policy.Max {
		return
	}
	t.swept = now
	for volume := range t.failed {
		t.forget(volume, func(f failures) { f.dropOld(now.Add(-t.policy.Max)) })
	}
}
