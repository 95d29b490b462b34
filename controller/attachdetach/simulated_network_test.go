package attachdetach_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/store/storetest"
)

// This file is the way of the controllers to the store, on which messages are lost, late, doubled and cut off.

var errNetwork = errors.New("no route to host")

// network is the way of one process to the store. It is a store.Transactor; plain has it without transactions.
type network struct {
	*storetest.Faulty
	store.Lessor

	cluster  *cluster
	process  string
	mu       sync.Mutex
	off      bool
	requests int
	ended    []context.CancelFunc // of the watches
}

// plain is a store without transactions.
type plain struct {
	store.Store
	store.Lessor
}

func (c *cluster) newNetwork(process string) *network {
	n := &network{cluster: c, process: process}
	n.Faulty = storetest.NewFaulty(c.memory, storetest.Faults{
		Seed: uint64(c.luck(1 << 30)), Conflict: 0.02, Refuse: 0.02, LoseAnswer: 0.01,
	})
	n.Lessor = store.NewLeaseObjects(n, store.LeaseObjectsOptions{Jitter: -1})
	return n
}

// forPod is the key of the name of the pod for which a scheduler asks. Pods share a claim: two requests for it would not be told apart.
type forPod struct{}

// podOf names the pod of a request, if it is one of a scheduler.
func podOf(ctx context.Context) string {
	if name, ok := ctx.Value(forPod{}).(string); ok {
		return " for " + name
	}
	return ""
}

// request has a request wait for its turn and, now and then, take its time. It fails when the process is cut off.
func (n *network) request(ctx context.Context, what string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	what += podOf(ctx)
	n.cluster.turn(n.process, what)
	if luck := n.cluster.luck(100); luck < 10 {
		sleep(ctx, time.Duration(1+luck)*time.Millisecond)
		n.cluster.turn(n.process, what+" at last")
	}
	return n.pass()
}

// cutOff cuts the process off from the store, or ends that. Its watches end.
func (n *network) cutOff(off bool) {
	n.mu.Lock()
	n.off = off
	ended := n.ended
	n.ended = nil
	n.mu.Unlock()
	for _, end := range ended {
		end()
	}
	synctest.Wait() // No watcher receives the end of a watch together with the next change.
}

// mend ends all faults.
func (n *network) mend() {
	n.Mend()
	n.cutOff(false)
}

// tooMuch is more than any process asks for between two steps: one that works without end would hold up the time of the bubble.
const tooMuch = 2000

func (n *network) pass() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.requests++; n.requests == tooMuch {
		n.off = true
		n.cluster.violate("a process works without end")
	}
	if n.off {
		return errNetwork
	}
	return nil
}

// rest begins to count anew.
func (n *network) rest() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.requests = 0
}

func (n *network) Get(ctx context.Context, key store.Key) (runtime.Object, error) {
	if err := n.request(ctx, "get "+key.String()); err != nil {
		return nil, err
	}
	return n.Faulty.Get(ctx, key)
}

func (n *network) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	if err := n.request(ctx, "list "+kind.Kind); err != nil {
		return store.List{}, err
	}
	return n.Faulty.List(ctx, kind, namespace)
}

func (n *network) Create(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	if err := n.request(ctx, "create "+nameOf(obj)); err != nil {
		return nil, err
	}
	return n.Faulty.Create(ctx, n.cluster.withUID(obj))
}

func (n *network) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	if err := n.request(ctx, "update "+nameOf(obj)); err != nil {
		return nil, err
	}
	return n.Faulty.Update(ctx, obj)
}

func (n *network) Delete(ctx context.Context, key store.Key, p store.Preconditions) error {
	if err := n.request(ctx, "delete "+key.String()); err != nil {
		return err
	}
	return n.Faulty.Delete(ctx, key, p)
}

// Commit meets the faults that the other methods meet.
func (n *network) Commit(ctx context.Context, t store.Transaction) ([]runtime.Object, error) {
	if err := n.request(ctx, "commit "+writesOf(t)); err != nil {
		return nil, err
	}
	switch luck := n.cluster.luck(100); {
	case luck < 2:
		return nil, errNetwork
	case luck < 4 && t.Writes[0].Kind == store.WriteUpdate:
		return nil, fmt.Errorf("another writer was first: %w", store.ErrConflict)
	case luck == 99:
		_, _ = n.cluster.memory.Commit(ctx, n.withUIDs(t)) // It may take effect, and its answer is lost.
		return nil, errNetwork
	}
	return n.cluster.memory.Commit(ctx, n.withUIDs(t))
}

// withUIDs has the objects that are to be made have UIDs.
func (n *network) withUIDs(t store.Transaction) store.Transaction {
	t.Writes = slices.Clone(t.Writes)
	for i, w := range t.Writes {
		if w.Kind == store.WriteCreate {
			t.Writes[i] = store.ToCreate(n.cluster.withUID(w.Object))
		}
	}
	return t
}

func writesOf(t store.Transaction) string {
	var writes []string
	for _, w := range t.Writes {
		what := w.Key.String()
		if w.Object != nil {
			what = nameOf(w.Object)
		}
		writes = append(writes, fmt.Sprint(w.Kind, " ", what))
	}
	return strings.Join(writes, ", ")
}

func nameOf(obj runtime.Object) string {
	o, _ := obj.(store.Object)
	return fmt.Sprintf("%T %s %s", obj, store.NameOf(o), o.GetResourceVersion())
}

// Watch begins a watch. Its events may all be late; it may end before the next one, and bring one twice.
func (n *network) Watch(ctx context.Context, kind schema.GroupVersionKind, namespace, version string) (<-chan store.Event, error) {
	if err := n.request(ctx, "watch "+kind.Kind); err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(ctx)
	events, err := n.cluster.memory.Watch(ctx, kind, namespace, version)
	if err != nil {
		end()
		return nil, err
	}
	n.mu.Lock()
	n.ended = append(n.ended, end)
	n.mu.Unlock()
	w := &watch{network: n, label: n.process + " sees " + kind.Kind + " of " + whoAsks(), out: make(chan store.Event)}
	if luck := n.cluster.luck(100); luck < 10 {
		w.late = time.Duration(1+luck) * time.Second
	}
	go func() {
		defer close(w.out)
		defer end()
		w.pass(ctx, events)
	}()
	return w.out, nil
}

// watch is one of the watches of a process.
type watch struct {
	network *network
	label   string
	late    time.Duration // by that much each event is later than the one before
	out     chan store.Event
}

// pass passes events on, each in its turn, until they or ctx end, or the watch is cut.
func (w *watch) pass(ctx context.Context, events <-chan store.Event) {
	c := w.network.cluster
	for event := range events {
		if !w.comes(ctx) || c.luck(100) < 3 {
			return
		}
		copies := []store.Event{event}
		if c.luck(20) == 0 {
			copies = append(copies, store.Event{Type: event.Type, Object: event.Object.DeepCopyObject()})
		}
		for _, e := range copies {
			select {
			case <-ctx.Done():
				return
			case w.out <- e:
			}
		}
	}
}

// comes waits until the next event is there, and reports false when ctx ends first.
func (w *watch) comes(ctx context.Context) bool {
	c := w.network.cluster
	if !c.turns.TakeUnless(ctx, w.label) {
		return false
	}
	var delay time.Duration
	if luck := c.luck(100); luck < 10 {
		delay = time.Duration(1+luck) * time.Millisecond
	}
	if !c.isCalm() {
		delay += w.late
	}
	if delay == 0 {
		return true
	}
	sleep(ctx, delay)
	return c.turns.TakeUnless(ctx, w.label)
}

// relay passes events on until ctx or they end, as pass changes them; those for which it says no are lost.
func relay(ctx context.Context, events <-chan store.Event, pass func(store.Event) (store.Event, bool)) <-chan store.Event {
	out := make(chan store.Event)
	go func() {
		defer close(out)
		for event := range events {
			event, goesOn := pass(event)
			if !goesOn {
				continue
			}
			select {
			case out <- event:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
