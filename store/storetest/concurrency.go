package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/store"
)

func concurrencyCases() []testCase {
	return []testCase{
		{"OneUpdateWinsPerVersion", testOneWinner},
		{"OneCreateWinsPerName", testOneCreator},
		{"OneOfUpdateAndDeleteWins", testUpdateAgainstDelete},
		{"NoIncrementIsLost", testIncrements},
		{"NothingIsLostBetweenListAndWatch", testListThenWatch},
	}
}

const (
	writers    = 8
	increments = 10 // by each writer
)

// together runs f in as many goroutines as there are writers, and returns how many returned true.
func together(f func(i int) bool) int {
	var wg sync.WaitGroup
	wins := make(chan bool, writers)
	for i := range writers {
		wg.Go(func() { wins <- f(i) })
	}
	wg.Wait()
	close(wins)
	count := 0
	for won := range wins {
		if won {
			count++
		}
	}
	return count
}

func testOneWinner(t *testing.T, s store.Store) {
	pv := create(t, s, newVolume("disk"))
	for round := range 10 {
		wins := together(func(i int) bool {
			mine := pv.DeepCopy()
			mine.Labels["winner"] = fmt.Sprintf("%d-%d", round, i)
			_, err := s.Update(t.Context(), mine)
			if err != nil && !errors.Is(err, store.ErrConflict) {
				t.Errorf("round %d: %v", round, err)
			}
			return err == nil
		})
		if wins != 1 {
			t.Fatalf("round %d: %d updates of one version succeeded", round, wins)
		}
		pv = volume(t, s, "disk")
	}
}

func testOneCreator(t *testing.T, s store.Store) {
	wins := together(func(int) bool {
		_, err := s.Create(t.Context(), newVolume("disk"))
		if err != nil && !errors.Is(err, store.ErrAlreadyExists) {
			t.Error(err)
		}
		return err == nil
	})
	if wins != 1 {
		t.Errorf("%d creations of one name succeeded", wins)
	}
}

// testUpdateAgainstDelete makes writers change and delete one version: only the first one succeeds.
func testUpdateAgainstDelete(t *testing.T, s store.Store) {
	for round := range 30 {
		pv := create(t, s, newVolume(fmt.Sprintf("disk-%d", round)))
		wins := together(func(i int) bool {
			var err error
			if i%2 == 0 {
				mine := pv.DeepCopy()
				mine.Labels["winner"] = strconv.Itoa(i)
				_, err = s.Update(t.Context(), mine)
			} else {
				err = s.Delete(t.Context(), volumeKey(pv.Name), store.Preconditions{ResourceVersion: pv.ResourceVersion})
			}
			if err != nil && !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrNotFound) {
				t.Errorf("round %d: %v", round, err)
			}
			return err == nil
		})
		if wins != 1 {
			t.Fatalf("round %d: %d updates and deletions of one version succeeded", round, wins)
		}
	}
}

func testIncrements(t *testing.T, s store.Store) {
	create(t, s, newVolume("disk"))
	events := watch(t, s, present(t, s))
	together(func(int) bool {
		for range increments {
			if err := increment(t.Context(), s); err != nil {
				t.Error(err)
				return false
			}
		}
		return true
	})
	for i := 1; i <= writers*increments; i++ {
		event, _ := next(t, events)
		pv, ok := event.Object.(*v1.PersistentVolume)
		if !ok || pv.Labels["count"] != strconv.Itoa(i) {
			t.Fatalf("event %d says %v", i, event.Object)
		}
	}
}

// increment adds one to the volume's label, and retries after each conflict. Each conflict means that another writer has made one of
// its increments. So only a broken store has more conflicts than there are increments.
func increment(ctx context.Context, s store.Store) error {
	for range writers*increments + 1 {
		pv, err := store.Get[*v1.PersistentVolume](ctx, s, "", "disk")
		if err != nil {
			return err
		}
		count, _ := strconv.Atoi(pv.Labels["count"])
		pv.Labels["count"] = strconv.Itoa(count + 1)
		if _, err = s.Update(ctx, pv); !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("%w, though all others must be done by now", store.ErrConflict)
}

// testListThenWatch follows the store by a list and a watch while others write. In the end it must have the content of the store.
func testListThenWatch(t *testing.T, s store.Store) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := range writers {
		wg.Go(func() { churn(t, s, i) })
	}
	for range 4 {
		wg.Go(func() { follow(t, s) })
	}
}

// churn creates, changes and deletes its own volumes. The last one that it creates marks its end.
func churn(t *testing.T, s store.Store, writer int) {
	for i := range 10 {
		name := fmt.Sprintf("disk-%d-%d", writer, i)
		pv, err := store.Create(t.Context(), s, newVolume(name))
		if err == nil {
			pv.Status.Message = "changed"
			_, err = store.Update(t.Context(), s, pv)
		}
		if err == nil && i%2 == 0 {
			err = s.Delete(t.Context(), volumeKey(name), store.Preconditions{})
		}
		if err != nil {
			t.Error(err)
		}
	}
	if _, err := store.Create(t.Context(), s, newVolume(fmt.Sprintf("end-%d", writer))); err != nil {
		t.Error(err)
	}
}

// follow lists and watches until every writer has ended, and compares what it saw with what is there. A store ends the watch of
// a receiver that is too far behind, as one is on a busy machine. It then lists again. Each time the writers have written more, so only
// a broken store does that more often than they write.
func follow(t *testing.T, s store.Store) {
	seen, err := followOnce(t.Context(), s)
	for i := 0; i < writers*26 && isBehind(err); i++ {
		seen, err = followOnce(t.Context(), s)
	}
	if err != nil {
		t.Errorf("followed %v: %v", seen, err)
		return
	}
	compare(t, s, seen)
}

// isBehind reports whether an error says that events are missed, and a list is needed.
func isBehind(err error) bool { return errors.Is(err, errClosed) || errors.Is(err, store.ErrCompacted) }

func followOnce(ctx context.Context, s store.Store) (seen map[string]string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	items, version, err := store.ListOf[*v1.PersistentVolume](ctx, s, "")
	if err != nil {
		return nil, err
	}
	seen = map[string]string{}
	for _, pv := range items {
		seen[pv.Name] = pv.ResourceVersion
	}
	events, err := s.Watch(ctx, store.PersistentVolumes, "", version)
	if err != nil {
		return seen, err
	}
	for !allEnded(seen) {
		event, err := receive(events)
		if err != nil {
			return seen, err
		}
		apply(seen, event)
	}
	return seen, nil
}

func allEnded(seen map[string]string) bool {
	for i := range writers {
		if _, ok := seen[fmt.Sprintf("end-%d", i)]; !ok {
			return false
		}
	}
	return true
}

func apply(seen map[string]string, event store.Event) {
	pv, ok := event.Object.(*v1.PersistentVolume)
	switch {
	case !ok:
	case event.Type == store.Deleted:
		delete(seen, pv.Name)
	default:
		seen[pv.Name] = pv.ResourceVersion
	}
}

// compare compares what follow has seen with a list. All writers have ended.
func compare(t *testing.T, s store.Store, seen map[string]string) {
	items, _, err := store.ListOf[*v1.PersistentVolume](t.Context(), s, "")
	if err != nil {
		t.Error(err)
		return
	}
	there := map[string]string{}
	for _, pv := range items {
		there[pv.Name] = pv.ResourceVersion
	}
	if !maps.Equal(seen, there) {
		t.Errorf("followed %v; there are %v", seen, there)
	}
}
