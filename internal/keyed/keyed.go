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

// Claim is the right of one operation to its key. It is held until [Table.End].
type Claim struct {
	// Key is the key.
	Key Key
	// Subject is what the operation's failures count for.
	Subject Subject
	// Started is when the claim was made.
	Started time.Time
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
	volumes map[string]*entry
	// failed is the number of failures; when it reaches sweepAt, those that nobody came back for are dropped.
	failed, sweepAt int
}

// minSweep is the number of failures below which none is dropped for its age.
const minSweep = 64

// entry is what is known of one volume.
type entry struct {
	byPod    map[string]set
	byNode   map[string]set
	byBoth   map[Key]set
	all      set
	failures map[Subject]Failure
}

type set map[*Claim]struct{}

// New returns an empty table whose failures wait as policy says.
func New(policy backoff.Policy) *Table {
	return &Table{policy: policy.WithDefaults(), volumes: map[string]*entry{}, sweepAt: minSweep}
}

// Begin claims key for an operation of subject. It returns a refusal instead when a claim that key meets is held, or when
// the subject failed and has not waited long enough. A claim that is in the way is told before a failure.
func (t *Table) Begin(key Key, subject Subject) (*Claim, *Refusal) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.volumes[key.Volume]
	if c := e.meeting(key); c != nil {
		return nil, &Refusal{Running: c}
	}
	if f, ok := t.failure(subject); ok && now.Before(f.Until) {
		return nil, &Refusal{Failure: &f}
	}
	claim := &Claim{Key: key, Subject: subject, Started: now}
	if key.Volume != "" {
		t.entry(key.Volume).add(claim)
	}
	return claim, nil
}

// Fail counts a failure of the subject of claim, which is still held, and returns it.
func (t *Table) Fail(claim *Claim, err error) Failure {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed >= t.sweepAt {
		t.sweep(now)
	}
	e := t.entry(claim.Subject.Key.Volume)
	f, known := e.failures[claim.Subject]
	if !known {
		t.failed++
	}
	f.Attempts++
	f.Until = now.Add(t.policy.Delay(f.Attempts))
	f.Err = err
	if e.failures == nil {
		e.failures = map[Subject]Failure{}
	}
	e.failures[claim.Subject] = f
	return f
}

// Succeed forgets every failure of the key of the subject of claim, of each kind: a mount that worked ends the troubles
// of an unmount as well.
func (t *Table) Succeed(claim *Claim) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(claim.Subject.Key.Volume, func(k Key) bool { return k == claim.Subject.Key })
}

// End gives the key of claim back. It must be called once.
func (t *Table) End(claim *Claim) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.volumes[claim.Key.Volume]
	if e == nil {
		return
	}
	e.remove(claim)
	t.drop(claim.Key.Volume)
}

// Pending returns a claim that key meets, or nil.
func (t *Table) Pending(key Key) *Claim {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.volumes[key.Volume].meeting(key)
}

// Forget forgets the failures of key, of each kind. An empty Pod or Node stands for all of them.
func (t *Table) Forget(key Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(key.Volume, func(k Key) bool {
		return (key.Pod == "" || key.Pod == k.Pod) && (key.Node == "" || key.Node == k.Node)
	})
}

// Len returns the number of volumes of which the table holds anything.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.volumes)
}

func (t *Table) entry(volume string) *entry {
	e := t.volumes[volume]
	if e == nil {
		e = &entry{byPod: map[string]set{}, byNode: map[string]set{}, byBoth: map[Key]set{}, all: set{}}
		t.volumes[volume] = e
	}
	return e
}

func (t *Table) failure(s Subject) (Failure, bool) {
	e := t.volumes[s.Key.Volume]
	if e == nil {
		return Failure{}, false
	}
	f, ok := e.failures[s]
	return f, ok
}

func (t *Table) forget(volume string, match func(Key) bool) {
	e := t.volumes[volume]
	if e == nil {
		return
	}
	for s := range e.failures {
		if match(s.Key) {
			delete(e.failures, s)
			t.failed--
		}
	}
	t.drop(volume)
}

// sweep drops the failures that have waited longer than any wait lasts since they might have been tried again: their
// subject is gone. The next sweep comes when the failures have doubled, so that each costs a constant amount of it.
func (t *Table) sweep(now time.Time) {
	for volume, e := range t.volumes {
		for s, f := range e.failures {
			if now.Sub(f.Until) > t.policy.Max {
				delete(e.failures, s)
				t.failed--
			}
		}
		t.drop(volume)
	}
	t.sweepAt = max(minSweep, 2*t.failed)
}

// drop removes the entry of a volume of which nothing is known any more.
func (t *Table) drop(volume string) {
	if e := t.volumes[volume]; e != nil && len(e.all) == 0 && len(e.failures) == 0 {
		delete(t.volumes, volume)
	}
}
