package storetest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/store/storetest"
)

// envMutant has this binary test the mutant of that name, which is to fail.
const envMutant = "VOLUMEKIT_STORETEST_MUTANT"

// mutant is a store that breaks one rule or several that are about the same, and the cases that must see it.
type mutant struct {
	wrap   func(*store.Memory) store.Store
	caught []string
}

// broken is a store of which some methods are others.
type broken struct {
	*store.Memory
	create, update func(ctx context.Context, m *store.Memory, obj store.Object) (runtime.Object, error)
	get            func(ctx context.Context, m *store.Memory, key store.Key) (runtime.Object, error)
	remove         func(ctx context.Context, m *store.Memory, key store.Key, p store.Preconditions) error
	list           func(ctx context.Context, m *store.Memory, kind schema.GroupVersionKind, namespace string) (store.List, error)
	watch          func(ctx context.Context, m *store.Memory, kind schema.GroupVersionKind, namespace, version string) (<-chan store.Event, error)
	commit         func(ctx context.Context, m *store.Memory, t store.Transaction) ([]runtime.Object, error)
}

func (b broken) in(m *store.Memory) store.Store {
	b.Memory = m
	return &b
}

func (b *broken) Create(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	given, ok := obj.(store.Object)
	if b.create == nil || !ok {
		return b.Memory.Create(ctx, obj)
	}
	return b.create(ctx, b.Memory, given)
}

func (b *broken) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	if b.update == nil {
		return b.Memory.Update(ctx, obj)
	}
	return b.update(ctx, b.Memory, obj.(store.Object))
}

func (b *broken) Get(ctx context.Context, key store.Key) (runtime.Object, error) {
	if b.get == nil {
		return b.Memory.Get(ctx, key)
	}
	return b.get(ctx, b.Memory, key)
}

func (b *broken) Delete(ctx context.Context, key store.Key, p store.Preconditions) error {
	if b.remove == nil {
		return b.Memory.Delete(ctx, key, p)
	}
	return b.remove(ctx, b.Memory, key, p)
}

func (b *broken) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	if b.list == nil {
		return b.Memory.List(ctx, kind, namespace)
	}
	return b.list(ctx, b.Memory, kind, namespace)
}

func (b *broken) Watch(ctx context.Context, kind schema.GroupVersionKind, namespace, version string) (<-chan store.Event, error) {
	if b.watch == nil {
		return b.Memory.Watch(ctx, kind, namespace, version)
	}
	return b.watch(ctx, b.Memory, kind, namespace, version)
}

func (b *broken) Commit(ctx context.Context, t store.Transaction) ([]runtime.Object, error) {
	if b.commit == nil {
		return b.Memory.Commit(ctx, t)
	}
	return b.commit(ctx, b.Memory, t)
}

// creates returns a store that creates what change makes of it.
func creates(change func(store.Object)) broken {
	return broken{create: func(ctx context.Context, m *store.Memory, obj store.Object) (runtime.Object, error) {
		obj = obj.DeepCopyObject().(store.Object)
		change(obj)
		return m.Create(ctx, obj)
	}}
}

// tellsOfCreation returns a store that tells something else than what it has created.
func tellsOfCreation(change func(given, created store.Object)) broken {
	return broken{create: func(ctx context.Context, m *store.Memory, obj store.Object) (runtime.Object, error) {
		created, err := m.Create(ctx, obj)
		if err == nil {
			change(obj, created.(store.Object))
		}
		return created, err
	}}
}

// updates returns a store that ends its updates in another way.
func updates(end func(m *store.Memory, given, updated runtime.Object, err error) (runtime.Object, error)) broken {
	return broken{update: func(ctx context.Context, m *store.Memory, obj store.Object) (runtime.Object, error) {
		updated, err := m.Update(ctx, obj)
		return end(m, obj, updated, err)
	}}
}

// watches returns a store whose watches tell something else.
func watches(change func(store.Event) []store.Event) broken {
	return broken{watch: func(ctx context.Context, m *store.Memory, kind schema.GroupVersionKind, namespace, version string) (<-chan store.Event, error) {
		events, err := m.Watch(ctx, kind, namespace, version)
		if err != nil {
			return nil, err
		}
		out := make(chan store.Event, 1000)
		go func() {
			defer close(out)
			for e := range events {
				for _, changed := range change(e) {
					out <- changed
				}
			}
		}()
		return out, nil
	}}
}

// blind updates whatever version it is given.
func blind() broken {
	var mu sync.Mutex
	return broken{update: func(ctx context.Context, m *store.Memory, obj store.Object) (runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		return m.Update(ctx, upToDate(ctx, m, obj))
	}}
}

// upToDate returns a copy of obj at its present version, if there is one.
func upToDate(ctx context.Context, m *store.Memory, obj runtime.Object) store.Object {
	copied := obj.DeepCopyObject().(store.Object)
	key, err := store.KeyOf(copied)
	if err != nil {
		return copied
	}
	if now, err := m.Get(ctx, key); err == nil {
		copied.SetResourceVersion(now.(store.Object).GetResourceVersion())
	}
	return copied
}

// replacing puts what is created in the place of what exists.
func replacing() broken {
	var mu sync.Mutex
	return broken{create: func(ctx context.Context, m *store.Memory, obj store.Object) (runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		if key, err := store.KeyOf(obj); err == nil {
			_ = m.Delete(ctx, key, store.Preconditions{})
		}
		return m.Create(ctx, obj)
	}}
}

// careless deletes whatever the preconditions and the finalizers are.
func careless() broken {
	return broken{remove: func(ctx context.Context, m *store.Memory, key store.Key, _ store.Preconditions) error {
		obj, err := m.Get(ctx, key)
		if err != nil {
			return err
		}
		last := obj.(store.Object)
		last.SetFinalizers(nil)
		if _, err := m.Update(ctx, last); err != nil {
			return err
		}
		return m.Delete(ctx, key, store.Preconditions{})
	}}
}

// crossKinds deletes the objects of a name of all kinds.
func crossKinds() broken {
	return broken{remove: func(ctx context.Context, m *store.Memory, key store.Key, _ store.Preconditions) error {
		for _, kind := range store.Kinds() {
			_ = m.Delete(ctx, store.Key{Kind: kind, Name: key.Name}, store.Preconditions{})
		}
		return nil
	}}
}

// endless goes on to tell when its context has ended.
func endless() broken {
	return broken{watch: func(ctx context.Context, m *store.Memory, kind schema.GroupVersionKind, namespace, version string) (<-chan store.Event, error) {
		events, err := m.Watch(context.WithoutCancel(ctx), kind, namespace, version)
		out := make(chan store.Event)
		go func() {
			last := store.Event{}
			for {
				select {
				case last = <-events:
				case <-ctx.Done():
				}
				out <- last
			}
		}()
		return out, err
	}}
}

// sharing tells every watch of the same object.
func sharing() broken {
	var mu sync.Mutex
	told := map[string]runtime.Object{}
	return watches(func(e store.Event) []store.Event {
		mu.Lock()
		defer mu.Unlock()
		version := e.Object.(store.Object).GetResourceVersion()
		if told[version] == nil {
			told[version] = e.Object
		}
		e.Object = told[version]
		return []store.Event{e}
	})
}

// deaf lists nothing, and its watches end at once.
func deaf() broken {
	return broken{
		list: func(ctx context.Context, m *store.Memory, kind schema.GroupVersionKind, namespace string) (store.List, error) {
			list, err := m.List(ctx, kind, namespace)
			list.Items = nil
			return list, err
		},
		watch: func(context.Context, *store.Memory, schema.GroupVersionKind, string, string) (<-chan store.Event, error) {
			ended := make(chan store.Event)
			close(ended)
			return ended, nil
		},
	}
}

// forgetful resumes a watch of a version that it has forgotten from where it is now.
func forgetful() broken {
	return broken{watch: func(ctx context.Context, m *store.Memory, kind schema.GroupVersionKind, namespace, version string) (<-chan store.Event, error) {
		events, err := m.Watch(ctx, kind, namespace, version)
		if !errors.Is(err, store.ErrCompacted) {
			return events, err
		}
		list, err := m.List(ctx, kind, namespace)
		if err != nil {
			return nil, err
		}
		return m.Watch(ctx, kind, namespace, list.ResourceVersion)
	}}
}

// halves does the writes of a transaction one by one, and asks for nothing else.
func halves() broken {
	return broken{commit: func(ctx context.Context, m *store.Memory, t store.Transaction) ([]runtime.Object, error) {
		var all []runtime.Object
		for _, w := range t.Writes {
			objects, err := m.Commit(ctx, store.Transaction{Writes: []store.Write{w}})
			if err != nil {
				return nil, err
			}
			all = append(all, objects...)
		}
		return all, nil
	}}
}

// commits returns a store whose transactions are others.
func commits(change func(ctx context.Context, m *store.Memory, w store.Write) (store.Write, bool)) broken {
	var mu sync.Mutex
	return broken{commit: func(ctx context.Context, m *store.Memory, t store.Transaction) ([]runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		var writes []store.Write
		for _, w := range t.Writes {
			if changed, kept := change(ctx, m, w); kept {
				writes = append(writes, changed)
			}
		}
		t.Writes = writes
		return m.Commit(ctx, t)
	}}
}

// generous gives a lease to every caller.
type generous struct{ *store.Memory }

func (*generous) AcquireLease(_ context.Context, r store.LeaseRequest) (store.Lease, error) {
	return store.Lease{Name: r.Name, Holder: r.Holder, TTL: r.TTL, Token: 1, Expires: metav1.Now().Add(r.TTL)}, nil
}

func (*generous) RenewLease(_ context.Context, l store.Lease) (store.Lease, error) { return l, nil }

func (*generous) ReleaseLease(context.Context, store.Lease) error { return nil }

// stingy gives one lease, whatever its name.
type stingy struct {
	*store.Memory
	given bool
}

func (s *stingy) AcquireLease(ctx context.Context, r store.LeaseRequest) (store.Lease, error) {
	if s.given {
		return store.Lease{}, store.ErrLeaseHeld
	}
	s.given = true
	return store.NewLeaseObjects(s.Memory, store.LeaseObjectsOptions{}).AcquireLease(ctx, r)
}

func (*stingy) RenewLease(_ context.Context, l store.Lease) (store.Lease, error) { return l, nil }

func (*stingy) ReleaseLease(context.Context, store.Lease) error { return nil }

func count(obj runtime.Object) string { return obj.(store.Object).GetLabels()["count"] }

func mutants() map[string]mutant {
	now := metav1.Now()
	first := func(obj store.Object) { obj.SetUID("always") }
	return map[string]mutant{
		"a creation is told without its UID": {tellsOfCreation(func(_, created store.Object) { created.SetUID("") }).in,
			[]string{"CreateFillsInWhatTheStoreKnows"}},
		"a UID that was given is lost":     {creates(func(obj store.Object) { obj.SetUID("") }).in, []string{"CreateKeepsAGivenUIDOrRefusesIt"}},
		"a creation replaces":              {replacing().in, []string{"CreateOfWhatExistsLeavesTheOld", "OneCreateWinsPerName"}},
		"a version that was given is lost": {creates(func(obj store.Object) { obj.SetResourceVersion("") }).in, []string{"CreateRefusesAResourceVersion"}},
		"what is new is being deleted": {tellsOfCreation(func(_, created store.Object) { created.SetDeletionTimestamp(&now) }).in,
			[]string{"CreateIgnoresADeletionTime"}},
		"what is given is written to": {tellsOfCreation(func(given, created store.Object) { given.SetUID(created.GetUID()) }).in,
			[]string{"CopiesInAndOut"}},
		"an object inherits":                 {creates(first).in, []string{"ADeletedNameIsFree"}},
		"what is malformed is a conflict":    {broken{create: confused}.in, []string{"MalformedIsInvalid"}},
		"it updates whatever the version is": {blind().in, []string{"UpdateNeedsTheVersion", "UpdateOfAnOldVersionConflicts", "OneUpdateWinsPerVersion"}},
		"what is gone is a conflict": {updates(func(_ *store.Memory, _, updated runtime.Object, err error) (runtime.Object, error) {
			if errors.Is(err, store.ErrNotFound) {
				err = store.ErrConflict
			}
			return updated, err
		}).in, []string{"UpdateOfWhatIsGoneIsNotFound"}},
		"an update changes the UID": {updates(func(_ *store.Memory, given, updated runtime.Object, err error) (runtime.Object, error) {
			if err == nil {
				updated.(store.Object).SetUID(given.(store.Object).GetUID())
			}
			return updated, err
		}).in, []string{"UpdateKeepsIdentity"}},
		"an update keeps the version": {updates(func(_ *store.Memory, given, updated runtime.Object, err error) (runtime.Object, error) {
			if err == nil {
				updated.(store.Object).SetResourceVersion(given.(store.Object).GetResourceVersion())
			}
			return updated, err
		}).in, []string{"UpdateGivesANewVersionEachTime"}},
		"an update that is refused is told as done": {updates(func(_ *store.Memory, given, updated runtime.Object, err error) (runtime.Object, error) {
			if errors.Is(err, store.ErrInvalid) {
				return given, nil
			}
			return updated, err
		}).in, []string{"NoFinalizerIsAddedToADyingObject"}},
		"an update that is refused writes": {updates(func(m *store.Memory, _, updated runtime.Object, err error) (runtime.Object, error) {
			if err != nil {
				_, _ = m.Create(context.Background(), &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "ghost"}})
			}
			return updated, err
		}).in, []string{"AFailedWriteIsNotWatched"}},
		"an update writes what was there before": {broken{update: func(ctx context.Context, m *store.Memory, obj store.Object) (runtime.Object, error) {
			obj.SetLabels(map[string]string{"made": "here"})
			return m.Update(ctx, obj)
		}}.in, []string{"NoIncrementIsLost"}},
		"what is not there is malformed": {broken{get: func(ctx context.Context, m *store.Memory, key store.Key) (runtime.Object, error) {
			obj, err := m.Get(ctx, key)
			if err != nil {
				err = store.ErrInvalid
			}
			return obj, err
		}}.in, []string{"GetOfWhatIsNotThereIsNotFound"}},
		"a context is not asked": {broken{get: func(ctx context.Context, m *store.Memory, key store.Key) (runtime.Object, error) {
			return m.Get(context.WithoutCancel(ctx), key)
		}}.in, []string{"AnEndedContextEndsTheCall"}},
		"a list backwards": {broken{list: func(ctx context.Context, m *store.Memory, kind schema.GroupVersionKind, namespace string) (store.List, error) {
			list, err := m.List(ctx, kind, namespace)
			slices.Reverse(list.Items)
			return list, err
		}}.in, []string{"ListIsSortedAndByNamespace"}},
		"a deletion that is refused is told as done": {broken{remove: func(ctx context.Context, m *store.Memory, key store.Key, p store.Preconditions) error {
			_ = m.Delete(ctx, key, p)
			return nil
		}}.in, []string{"OneOfUpdateAndDeleteWins"}},
		"names of all kinds are deleted":    {crossKinds().in, []string{"KindsAreApart"}},
		"a deletion asks for nothing":       {careless().in, []string{"DeleteHoldsToPreconditions", "DeleteOfThatVeryObject", "FinalizersKeepAnObject"}},
		"an event twice":                    {watches(func(e store.Event) []store.Event { return []store.Event{e, e} }).in, []string{"AWatchTellsEachWriteOnceAndInOrder"}},
		"an event is lost":                  {watches(without("second")).in, []string{"AWatchBeginsAfterItsVersion"}},
		"an event of a transaction is lost": {watches(without("a")).in, []string{"AWatchIsResumedWithinATransaction"}},
		"a watch of all namespaces": {broken{watch: func(ctx context.Context, m *store.Memory, kind schema.GroupVersionKind, _, version string) (<-chan store.Event, error) {
			return m.Watch(ctx, kind, "", version)
		}}.in, []string{"AWatchHoldsToItsKindAndNamespace"}},
		"a deletion without the object": {watches(func(e store.Event) []store.Event {
			if e.Type == store.Deleted {
				e.Object = &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: e.Object.(store.Object).GetName()}}
			}
			return []store.Event{e}
		}).in, []string{"ADeletionCarriesTheLastObject"}},
		"a deletion is a creation": {watches(func(e store.Event) []store.Event {
			if e.Type == store.Deleted {
				e.Type = store.Added
			}
			return []store.Event{e}
		}).in, []string{"TheEndOfFinalizersIsADeletion"}},
		"watches share their objects":      {sharing().in, []string{"AWatchedObjectIsACopy"}},
		"a watch goes on when it is ended": {endless().in, []string{"CancelClosesAWatch"}},
		"a watch ends by itself":           {deaf().in, []string{"NothingIsLostBetweenListAndWatch"}},
		"a compacted version is skipped":   {forgetful().in, []string{"AWatchFromACompactedVersionSaysSo"}},
		"half a transaction": {halves().in, []string{
			"ATransactionThatFailsWritesNothing", "ATransactionHoldsToItsConditions", "ATransactionThatOnlyAsks",
			"AMalformedTransactionIsInvalid", "ALostLeaseStopsATransaction",
		}},
		"objects of a transaction in another order": {broken{commit: func(ctx context.Context, m *store.Memory, t store.Transaction) ([]runtime.Object, error) {
			objects, err := m.Commit(ctx, t)
			slices.Reverse(objects)
			return objects, err
		}}.in, []string{"ATransactionWritesAll"}},
		"a transaction updates whatever the version is": {commits(func(ctx context.Context, m *store.Memory, w store.Write) (store.Write, bool) {
			if w.Kind == store.WriteUpdate {
				w.Object = upToDate(ctx, m, w.Object)
			}
			return w, true
		}).in, []string{"OneTransactionWinsPerVersion"}},
		"a transaction does what adds": {commits(func(ctx context.Context, m *store.Memory, w store.Write) (store.Write, bool) {
			key, err := store.KeyOf(w.Object)
			if err != nil {
				return w, true
			}
			before, err := m.Get(ctx, key)
			return w, err != nil || len(count(w.Object)) > len(count(before)) || count(w.Object) > count(before)
		}).in, []string{"NoReaderSeesHalfATransaction"}},
		"a lease of many holders": {func(m *store.Memory) store.Store { return &generous{m} }, []string{
			"ALeaseHasOneHolder", "AReleasedLeaseIsFree", "AHeldLeaseIsWaitedFor", "AnExpiredLeaseIsAnothers", "ARenewedLeaseLives",
			"AHolderTakesItsLeaseAgain", "AMalformedRequestIsInvalid",
		}},
		"one lease for all names": {func(m *store.Memory) store.Store { return &stingy{Memory: m} }, []string{"LeasesAreApart"}},
	}
}

func confused(ctx context.Context, m *store.Memory, obj store.Object) (runtime.Object, error) {
	created, err := m.Create(ctx, obj)
	if errors.Is(err, store.ErrInvalid) {
		err = store.ErrConflict
	}
	return created, err
}

// without loses the events of a name.
func without(name string) func(store.Event) []store.Event {
	return func(e store.Event) []store.Event {
		if e.Object.(store.Object).GetName() == name {
			return nil
		}
		return []store.Event{e}
	}
}

// TestMutant is what a mutant is tested with; nothing in the process of the tests themselves.
func TestMutant(t *testing.T) {
	m, ok := mutants()[os.Getenv(envMutant)]
	if !ok {
		return
	}
	storetest.Run(t, storetest.Config{
		New: func(*testing.T) store.Store { return m.wrap(store.NewMemory(store.MemoryOptions{History: 100})) },
		Compact: func(t *testing.T, s store.Store) {
			for i := range 201 {
				_, err := s.Create(t.Context(), &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("filler-%d", i)}})
				require.NoError(t, err)
			}
		},
	})
}

// TestSuiteCatchesMutants has each broken store fail the cases that are about what it breaks.
func TestSuiteCatchesMutants(t *testing.T) {
	for name, m := range mutants() {
		t.Run(name, func(t *testing.T) {
			c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMutant$/^("+strings.Join(m.caught, "|")+")$", "-test.timeout=1m")
			c.Env = append(os.Environ(), envMutant+"="+name, "GORACE=atexit_sleep_ms=0")
			out, err := c.CombinedOutput()
			var failed *exec.ExitError
			require.ErrorAs(t, err, &failed, string(out))
			for _, rule := range m.caught {
				assert.Contains(t, string(out), "--- FAIL: TestMutant/"+rule+" ")
			}
		})
	}
}

// TestEachRuleHasAMutant: a rule that was never seen to fail may be none.
func TestEachRuleHasAMutant(t *testing.T) {
	var caught []string
	for _, m := range mutants() {
		caught = append(caught, m.caught...)
	}
	assert.Subset(t, caught, storetest.Rules())
	assert.Subset(t, storetest.Rules(), caught)
}
