package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/store"
)

// ErrInjected matches every injected error of a [Faulty] store, except conflicts.
var ErrInjected = errors.New("injected by the test")

// Faults are the probabilities of the faults of a [Faulty] store, between 0 and 1. The zero value has no faults.
type Faults struct {
	// Seed is the seed of the random numbers: the same calls in the same order get the same faults.
	Seed uint64
	// Conflict is how often an update fails with a conflict although no other write came between.
	Conflict float64
	// Refuse is how often a call fails before it does anything.
	Refuse float64
	// LoseAnswer is how often a write takes effect although its caller gets an error.
	LoseAnswer float64
	// CutWatch is how often a watch is closed instead of its next event. A resumed watch gets that event.
	CutWatch float64
	// Duplicate is how often an event is sent twice. The rules of stores forbid that. But a reader that resumes at an older version
	// gets events twice, too.
	Duplicate float64
	// Delay, if not nil, is called before each call and each event. It must return when ctx ends.
	Delay func(ctx context.Context)
}

// Faulty is a store that fails like one on another machine, for tests of programs that use a store. Make it with [NewFaulty]. It has
// no transactions and no leases.
type Faulty struct {
	store store.Store

	mu     sync.Mutex
	faults Faults
	random *rand.Rand
}

// NewFaulty returns s with faults.
func NewFaulty(s store.Store, faults Faults) *Faulty {
	return &Faulty{store: s, faults: faults, random: rand.New(rand.NewPCG(faults.Seed, 0))}
}

// Kinds returns the kinds that the store keeps.
func (f *Faulty) Kinds() *store.KindTable { return store.KindsOf(f.store) }

// Mend ends all faults, so that a test can see everything converge.
func (f *Faulty) Mend() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = Faults{}
}

// happens decides at random whether one of the faults happens.
func (f *Faulty) happens(probability func(Faults) float64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.random.Float64() < probability(f.faults)
}

// begin delays a call. It returns the error of a call that fails.
func (f *Faulty) begin(ctx context.Context) error {
	f.mu.Lock()
	delay := f.faults.Delay
	f.mu.Unlock()
	if delay != nil {
		delay(ctx)
	}
	if f.happens(func(f Faults) float64 { return f.Refuse }) {
		return fmt.Errorf("nothing was done: %w", ErrInjected)
	}
	return ctx.Err()
}

// end returns the error of a write that took effect: err, or the loss of its answer.
func (f *Faulty) end(err error) error {
	if err == nil && f.happens(func(f Faults) float64 { return f.LoseAnswer }) {
		return fmt.Errorf("it was done: %w", ErrInjected)
	}
	return err
}

// Get implements store.Store.
func (f *Faulty) Get(ctx context.Context, key store.Key) (runtime.Object, error) {
	if err := f.begin(ctx); err != nil {
		return nil, err
	}
	return f.store.Get(ctx, key)
}

// Create implements store.Store.
func (f *Faulty) Create(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	if err := f.begin(ctx); err != nil {
		return nil, err
	}
	created, err := f.store.Create(ctx, obj)
	return created, f.end(err)
}

// Update implements store.Store.
func (f *Faulty) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	if err := f.begin(ctx); err != nil {
		return nil, err
	}
	if f.happens(func(f Faults) float64 { return f.Conflict }) {
		return nil, fmt.Errorf("injected by the test: %w", store.ErrConflict)
	}
	updated, err := f.store.Update(ctx, obj)
	return updated, f.end(err)
}

// Delete implements store.Store.
func (f *Faulty) Delete(ctx context.Context, key store.Key, preconditions store.Preconditions) error {
	if err := f.begin(ctx); err != nil {
		return err
	}
	return f.end(f.store.Delete(ctx, key, preconditions))
}

// List implements store.Store.
func (f *Faulty) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	if err := f.begin(ctx); err != nil {
		return store.List{}, err
	}
	return f.store.List(ctx, kind, namespace)
}

// Watch implements store.Store. The goroutine behind the channel ends with ctx, or when it cuts the watch.
func (f *Faulty) Watch(ctx context.Context, kind schema.GroupVersionKind, namespace, version string) (<-chan store.Event, error) {
	if err := f.begin(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	events, err := f.store.Watch(ctx, kind, namespace, version)
	if err != nil {
		cancel()
		return nil, err
	}
	out := make(chan store.Event)
	go func() {
		defer close(out)
		defer cancel()
		f.pass(ctx, events, out)
	}()
	return out, nil
}

// pass sends events on until the watch is cut or ends.
func (f *Faulty) pass(ctx context.Context, events <-chan store.Event, out chan<- store.Event) {
	for event := range events {
		if f.begin(ctx) != nil || f.happens(func(f Faults) float64 { return f.CutWatch }) {
			return
		}
		copies := []store.Event{event}
		if f.happens(func(f Faults) float64 { return f.Duplicate }) {
			copies = append(copies, store.Event{Type: event.Type, Object: event.Object.DeepCopyObject()})
		}
		for _, e := range copies {
			select {
			case <-ctx.Done():
				return
			case out <- e:
			}
		}
	}
}
