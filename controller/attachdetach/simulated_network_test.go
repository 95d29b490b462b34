package attachdetach_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
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

	cluster  *cluster
	mu       sync.Mutex
	off      bool
	requests int
	ended    []context.CancelFunc // of the watches
}

// plain is a store without transactions.
type plain struct{ store.Store }

func (c *cluster) newNetwork() *network {
	n := &network{cluster: c}
	n.Faulty = storetest.NewFaulty(c.memory, storetest.Faults{
		Seed: uint64(c.luck(1 << 30)), Conflict: 0.02, Refuse: 0.02, LoseAnswer: 0.01, CutWatch: 0.01, Duplicate: 0.05, Delay: n.delay,
	})
	return n
}

// delay has now and then a message take its time.
func (n *network) delay(ctx context.Context) {
	if luck := n.cluster.luck(100); luck < 10 {
		sleep(ctx, time.Duration(1+luck)*time.Millisecond)
	}
}

// cutOff cuts the process off from the store, or ends that.
func (n *network) cutOff(off bool) {
	n.mu.Lock()
	n.off = off
	ended := n.ended
	n.ended = nil
	n.mu.Unlock()
	for _, end := range ended {
		end()
	}
}

// mend ends all faults.
func (n *network) mend() {
	n.Mend()
	n.cutOff(false)
}

// tooMuch is more than any process asks for between two steps: one that works without end would hold up the time of the bubble.
const tooMuch = 10000

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
	if err := n.pass(); err != nil {
		return nil, err
	}
	return n.Faulty.Get(ctx, key)
}

func (n *network) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	if err := n.pass(); err != nil {
		return store.List{}, err
	}
	return n.Faulty.List(ctx, kind, namespace)
}

func (n *network) Create(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	if err := n.pass(); err != nil {
		return nil, err
	}
	return n.Faulty.Create(ctx, obj)
}

func (n *network) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	if err := n.pass(); err != nil {
		return nil, err
	}
	return n.Faulty.Update(ctx, obj)
}

func (n *network) Delete(ctx context.Context, key store.Key, p store.Preconditions) error {
	if err := n.pass(); err != nil {
		return err
	}
	return n.Faulty.Delete(ctx, key, p)
}

// Commit meets the faults that the other methods meet.
func (n *network) Commit(ctx context.Context, t store.Transaction) ([]runtime.Object, error) {
	n.delay(ctx)
	luck := n.cluster.luck(100)
	switch err := n.pass(); {
	case err != nil:
		return nil, err
	case luck < 2:
		return nil, errNetwork
	case luck < 4 && t.Writes[0].Kind == store.WriteUpdate:
		return nil, fmt.Errorf("somebody else was first: %w", store.ErrConflict)
	}
	objects, err := n.cluster.memory.Commit(ctx, t)
	if luck == 99 {
		return nil, errNetwork // It took effect, but nobody is told.
	}
	return objects, err
}

// Watch begins a watch whose events may all be late.
func (n *network) Watch(ctx context.Context, kind schema.GroupVersionKind, namespace, version string) (<-chan store.Event, error) {
	if err := n.pass(); err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(ctx)
	events, err := n.Faulty.Watch(ctx, kind, namespace, version)
	if err != nil {
		end()
		return nil, err
	}
	n.mu.Lock()
	n.ended = append(n.ended, end)
	n.mu.Unlock()
	if luck := n.cluster.luck(100); luck < 10 {
		return n.late(ctx, events, time.Duration(1+luck)*time.Second), nil
	}
	return events, nil
}

// late passes events on, each later than the one before by that much.
func (n *network) late(ctx context.Context, events <-chan store.Event, by time.Duration) <-chan store.Event {
	return relay(ctx, events, func(event store.Event) (store.Event, bool) {
		if !n.cluster.isCalm() {
			sleep(ctx, by)
		}
		return event, true
	})
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
