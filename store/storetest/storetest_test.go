package storetest_test

import (
	"context"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/internal/leak"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/store/storetest"
)

func TestMain(m *testing.M) { os.Exit(leak.Run(m)) }

// envMutant has this binary test the mutant of that name, which is to fail.
const envMutant = "VOLUMEKIT_STORETEST_MUTANT"

// mutant is a store that breaks one rule, and the case that must see it.
type mutant struct {
	caught string
	wrap   func(*store.Memory) store.Store
}

func mutants() map[string]mutant {
	return map[string]mutant{
		"updates whatever the version": {"UpdateOfAnOldVersionConflicts", func(m *store.Memory) store.Store { return &blind{Memory: m} }},
		"two winners":                  {"OneUpdateWinsPerVersion", func(m *store.Memory) store.Store { return &blind{Memory: m} }},
		"an event twice": {"AWatchTellsEachWriteOnceAndInOrder", func(m *store.Memory) store.Store {
			return &watching{m, func(e store.Event) []store.Event { return []store.Event{e, e} }}
		}},
		"an event is lost": {"AWatchBeginsAfterItsVersion", func(m *store.Memory) store.Store {
			return &watching{m, func(e store.Event) []store.Event {
				if e.Object.(store.Object).GetName() == "second" {
					return nil
				}
				return []store.Event{e}
			}}
		}},
		"a deletion without the object": {"ADeletionCarriesTheLastObject", func(m *store.Memory) store.Store {
			return &watching{m, func(e store.Event) []store.Event {
				if e.Type == store.Deleted {
					e.Object = &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: e.Object.(store.Object).GetName()}}
				}
				return []store.Event{e}
			}}
		}},
		"half a transaction":         {"ATransactionThatFailsWritesNothing", func(m *store.Memory) store.Store { return &halves{m} }},
		"conditions are not asked":   {"ATransactionHoldsToItsConditions", func(m *store.Memory) store.Store { return &halves{m} }},
		"a lease of two holders":     {"ALeaseHasOneHolder", func(m *store.Memory) store.Store { return &generous{Memory: m} }},
		"a token that does not grow": {"AReleasedLeaseIsFree", func(m *store.Memory) store.Store { return &generous{Memory: m} }},
		"a late holder writes":       {"ALostLeaseStopsATransaction", func(m *store.Memory) store.Store { return &halves{m} }},
	}
}

// blind updates whatever version it is given.
type blind struct {
	*store.Memory
	mu sync.Mutex
}

func (b *blind) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key, err := store.KeyOf(obj)
	if err != nil {
		return nil, err
	}
	now, err := b.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	obj = obj.DeepCopyObject()
	obj.(store.Object).SetResourceVersion(now.(store.Object).GetResourceVersion())
	return b.Memory.Update(ctx, obj)
}

// watching changes events.
type watching struct {
	*store.Memory
	change func(store.Event) []store.Event
}

func (w *watching) Watch(ctx context.Context, kind schema.GroupVersionKind, namespace, version string) (<-chan store.Event, error) {
	events, err := w.Memory.Watch(ctx, kind, namespace, version)
	out := make(chan store.Event, 1000)
	go func() {
		defer close(out)
		for e := range events {
			for _, changed := range w.change(e) {
				out <- changed
			}
		}
	}()
	return out, err
}

// halves does the writes of a transaction one by one, and asks for nothing else.
type halves struct{ *store.Memory }

func (h *halves) Commit(ctx context.Context, t store.Transaction) ([]runtime.Object, error) {
	var all []runtime.Object
	for _, w := range t.Writes {
		objects, err := h.Memory.Commit(ctx, store.Transaction{Writes: []store.Write{w}})
		if err != nil {
			return nil, err
		}
		all = append(all, objects...)
	}
	return all, nil
}

// generous gives a lease to whoever asks.
type generous struct{ *store.Memory }

func (*generous) AcquireLease(_ context.Context, r store.LeaseRequest) (store.Lease, error) {
	return store.Lease{Name: r.Name, Holder: r.Holder, TTL: r.TTL, Token: 1, Expires: metav1.Now().Add(r.TTL)}, nil
}

func (*generous) RenewLease(_ context.Context, l store.Lease) (store.Lease, error) { return l, nil }

func (*generous) ReleaseLease(context.Context, store.Lease) error { return nil }

// TestMutant is what a mutant is tested with; nothing in the process of the tests themselves.
func TestMutant(t *testing.T) {
	m, ok := mutants()[os.Getenv(envMutant)]
	if !ok {
		return
	}
	storetest.Run(t, storetest.Config{New: func(*testing.T) store.Store {
		return m.wrap(store.NewMemory(store.MemoryOptions{}))
	}})
}

// TestSuiteCatchesMutants has each broken store fail the case that is about what it breaks.
func TestSuiteCatchesMutants(t *testing.T) {
	for name, m := range mutants() {
		t.Run(name, func(t *testing.T) {
			c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMutant$/^"+m.caught+"$", "-test.timeout=1m")
			c.Env = append(os.Environ(), envMutant+"="+name, "GORACE=atexit_sleep_ms=0")
			out, err := c.CombinedOutput()
			var failed *exec.ExitError
			require.ErrorAs(t, err, &failed, string(out))
			assert.Contains(t, string(out), "--- FAIL: TestMutant/"+m.caught)
		})
	}
}

// TestFaultyStore: a reader that does what readers are to do ends with what there is, and writers know what to read again.
func TestFaultyStore(t *testing.T) {
	memory := store.NewMemory(store.MemoryOptions{})
	f := storetest.NewFaulty(memory, storetest.Faults{Seed: 1, Conflict: 0.2, Refuse: 0.1, LoseAnswer: 0.2, CutWatch: 0.1, Duplicate: 0.2})
	made, lost, refused := 0, 0, 0
	for range 200 {
		obj, err := f.Create(t.Context(), &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{GenerateName: "x", Name: "disk"}})
		there, readErr := memory.Get(t.Context(), store.Key{Kind: store.PersistentVolumes, Name: "disk"})
		switch {
		case err == nil:
			made++
			require.Equal(t, obj, there)
		case readErr == nil:
			lost++
			require.ErrorIs(t, err, storetest.ErrInjected)
		default:
			refused++
			require.ErrorIs(t, err, storetest.ErrInjected)
			continue
		}
		require.NoError(t, store.Delete(t.Context(), memory, there.(*v1.PersistentVolume)))
	}
	assert.Positive(t, made)
	assert.Positive(t, lost)
	assert.Positive(t, refused)
	f.Mend()
	_, err := f.Create(t.Context(), &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}})
	require.NoError(t, err)
}

// TestMirrorOfAFaultyStore has a mirror follow through cuts, duplicates and failures.
func TestMirrorOfAFaultyStore(t *testing.T) {
	memory := store.NewMemory(store.MemoryOptions{})
	f := storetest.NewFaulty(memory, storetest.Faults{Seed: 2, Refuse: 0.1, CutWatch: 0.2, Duplicate: 0.3})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	m := store.NewMirror[*v1.PersistentVolume](f, store.MirrorOptions{InitialBackoff: 1, MaxBackoff: 1})
	last := make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Follow(ctx, func(pv *v1.PersistentVolume) {
			if pv.Name == "last" {
				select {
				case last <- struct{}{}:
				default:
				}
			}
		})
	}()
	for i := range 50 {
		pv, err := store.Create(ctx, memory, &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}})
		require.NoError(t, err)
		if i < 49 {
			require.NoError(t, store.Delete(ctx, memory, pv))
		}
	}
	_, err := store.Create(ctx, memory, &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "last"}})
	require.NoError(t, err)
	<-last
	assert.Len(t, m.All(), 2)
	cancel()
	<-done
}
