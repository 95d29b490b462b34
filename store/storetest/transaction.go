package storetest

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/store"
)

// transactionCases are the cases for a [store.Transactor]. Any other store has none.
func transactionCases() []testCase {
	return []testCase{
		{"ATransactionWritesAll", withTransactions(testTransaction)},
		{"ATransactionThatFailsWritesNothing", withTransactions(testFailedTransaction)},
		{"ATransactionHoldsToItsConditions", withTransactions(testConditions)},
		{"ATransactionThatOnlyAsks", withTransactions(testEmptyTransaction)},
		{"AMalformedTransactionIsInvalid", withTransactions(testInvalidTransaction)},
		{"OneTransactionWinsPerVersion", withTransactions(testOneTransactionWins)},
		{"NoReaderSeesHalfATransaction", withTransactions(testTransfers)},
		{"AWatchIsResumedWithinATransaction", withTransactions(testResumeWithin)},
	}
}

func withTransactions(run func(t *testing.T, s store.Transactor)) func(*testing.T, store.Store) {
	return func(t *testing.T, s store.Store) {
		transactor, ok := s.(store.Transactor)
		if !ok {
			t.Logf("%T is no store.Transactor: it has no transactions to be tested", s)
			return
		}
		run(t, transactor)
	}
}

// commit does a transaction, which must succeed.
func commit(t *testing.T, s store.Transactor, writes ...store.Write) []runtime.Object {
	t.Helper()
	objects, err := s.Commit(t.Context(), store.Transaction{Writes: writes})
	if err != nil {
		t.Fatalf("commit: %v", err)
	}
	if len(objects) != len(writes) {
		t.Fatalf("commit of %d writes returned %d objects", len(writes), len(objects))
	}
	return objects
}

func testTransaction(t *testing.T, s store.Transactor) {
	old := create(t, s, newVolume("old"))
	kept := newVolume("kept")
	kept.Finalizers = []string{"example.com/a"}
	create(t, s, kept)
	gone := create(t, s, newVolume("gone"))
	events := watch(t, s, present(t, s))
	old.Labels["made"] = "changed"
	objects := commit(t, s,
		store.ToCreate(newVolume("new")), store.ToUpdate(old), store.ToCreate(newClaim("default", "data")),
		store.ToDelete(volumeKey("kept"), store.Preconditions{}), store.ToDelete(volumeKey("gone"), store.Preconditions{UID: gone.UID}))
	versions := map[string]bool{}
	for _, obj := range objects {
		versions[metaOf(t, obj).GetResourceVersion()] = true
	}
	if len(versions) != len(objects) || versions[""] {
		t.Errorf("the versions of %d writes: %v", len(objects), versions)
	}
	for i, name := range []string{"new", "old", "data", "kept", "gone"} {
		if got := metaOf(t, objects[i]).GetName(); got != name {
			t.Errorf("object %d is of %q, not %q", i, got, name)
		}
	}
	want(t, events, "Added new", "Modified old", "Modified kept", "Deleted gone")
	if volume(t, s, "old").Labels["made"] != "changed" || volume(t, s, "kept").DeletionTimestamp == nil || volume(t, s, "new").UID == "" {
		t.Error("not every write was done")
	}
	_, err := s.Get(t.Context(), volumeKey("gone"))
	wantError(t, err, store.ErrNotFound)
	if _, err := store.Get[*v1.PersistentVolumeClaim](t.Context(), s, "default", "data"); err != nil {
		t.Error(err)
	}
}

func testFailedTransaction(t *testing.T, s store.Transactor) {
	old := create(t, s, newVolume("old"))
	now := update(t, s, old)
	events := watch(t, s, present(t, s))
	for name, c := range map[string]struct {
		write store.Write
		err   error
	}{
		"an old version":    {store.ToUpdate(old), store.ErrConflict},
		"what exists":       {store.ToCreate(newVolume("old")), store.ErrAlreadyExists},
		"what is not there": {store.ToDelete(volumeKey("none"), store.Preconditions{}), store.ErrNotFound},
		"another UID":       {store.ToDelete(volumeKey("old"), store.Preconditions{UID: "other"}), store.ErrConflict},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Commit(t.Context(), store.Transaction{Writes: []store.Write{store.ToCreate(newVolume("new")), c.write}})
			wantError(t, err, c.err)
			_, err = s.Get(t.Context(), volumeKey("new"))
			wantError(t, err, store.ErrNotFound)
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Commit(ctx, store.Transaction{Writes: []store.Write{store.ToCreate(newVolume("late"))}})
	wantError(t, err, context.Canceled)
	create(t, s, newVolume("end"))
	want(t, events, "Added end")
	if volume(t, s, "old").ResourceVersion != now.ResourceVersion {
		t.Error("a transaction that failed has changed an object")
	}
}

func testConditions(t *testing.T, s store.Transactor) {
	old := create(t, s, newVolume("asked"))
	now := update(t, s, old)
	for name, c := range map[string]struct {
		condition store.ObjectCondition
		err       error
	}{
		"it exists":                     {store.ObjectCondition{Key: volumeKey("asked")}, nil},
		"it exists not":                 {store.ObjectCondition{Key: volumeKey("none")}, store.ErrConflict},
		"it is absent":                  {store.ObjectCondition{Key: volumeKey("none"), Absent: true}, nil},
		"it is absent not":              {store.ObjectCondition{Key: volumeKey("asked"), Absent: true}, store.ErrConflict},
		"its version":                   {store.ObjectCondition{Key: volumeKey("asked"), Preconditions: store.Preconditions{ResourceVersion: now.ResourceVersion}}, nil},
		"its old version":               {store.ObjectCondition{Key: volumeKey("asked"), Preconditions: store.Preconditions{ResourceVersion: old.ResourceVersion}}, store.ErrConflict},
		"its UID":                       {store.ObjectCondition{Key: volumeKey("asked"), Preconditions: store.Preconditions{UID: now.UID}}, nil},
		"another UID":                   {store.ObjectCondition{Key: volumeKey("asked"), Preconditions: store.Preconditions{UID: "other"}}, store.ErrConflict},
		"what is not there has its UID": {store.ObjectCondition{Key: volumeKey("none"), Preconditions: store.Preconditions{UID: now.UID}}, store.ErrConflict},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Commit(t.Context(), store.Transaction{
				Conditions: []store.ObjectCondition{c.condition}, Writes: []store.Write{store.ToCreate(newVolume("written"))},
			})
			if c.err != nil {
				wantError(t, err, c.err)
				_, err = s.Get(t.Context(), volumeKey("written"))
				wantError(t, err, store.ErrNotFound)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			deleteVolume(t, s, "written")
		})
	}
}

func testEmptyTransaction(t *testing.T, s store.Transactor) {
	create(t, s, newVolume("asked"))
	_, err := s.Commit(t.Context(), store.Transaction{Conditions: []store.ObjectCondition{{Key: volumeKey("asked")}}})
	if err != nil {
		t.Errorf("a transaction that only asks: %v", err)
	}
	_, err = s.Commit(t.Context(), store.Transaction{Conditions: []store.ObjectCondition{{Key: volumeKey("asked"), Absent: true}}})
	wantError(t, err, store.ErrConflict)
}

func testInvalidTransaction(t *testing.T, s store.Transactor) {
	pv := create(t, s, newVolume("disk"))
	for name, tx := range map[string]store.Transaction{
		"two writes of one object": {Writes: []store.Write{store.ToUpdate(pv), store.ToDelete(volumeKey("disk"), store.Preconditions{})}},
		"no name":                  {Writes: []store.Write{store.ToCreate(newVolume(""))}},
		"an update of no version":  {Writes: []store.Write{store.ToUpdate(newVolume("disk"))}},
		"a creation of a version":  {Writes: []store.Write{store.ToCreate(pv)}},
		"no kind of write":         {Writes: []store.Write{{Object: newVolume("new")}}},
		"no object":                {Writes: []store.Write{store.ToCreate(nil)}},
		"a condition of no object": {Conditions: []store.ObjectCondition{{}}},
		"absent, with a UID":       {Conditions: []store.ObjectCondition{{Key: volumeKey("none"), Absent: true, Preconditions: store.Preconditions{UID: "a"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Commit(t.Context(), tx)
			wantError(t, err, store.ErrInvalid)
		})
	}
	if volume(t, s, "disk").ResourceVersion != pv.ResourceVersion {
		t.Error("the object was changed")
	}
}

// testOneTransactionWins makes writers change one volume each on the condition that another volume is unchanged.
func testOneTransactionWins(t *testing.T, s store.Transactor) {
	pv := create(t, s, newVolume("shared"))
	wins := together(func(i int) bool {
		_, err := s.Commit(t.Context(), store.Transaction{Writes: []store.Write{
			store.ToUpdate(pv), store.ToCreate(newVolume("winner-" + strconv.Itoa(i))),
		}})
		if err != nil && !errors.Is(err, store.ErrConflict) {
			t.Error(err)
		}
		return err == nil
	})
	items, _, err := store.ListOf[*v1.PersistentVolume](t.Context(), s, "")
	if err != nil {
		t.Fatal(err)
	}
	if wins != 1 || len(items) != 2 {
		t.Errorf("%d transactions succeeded, and left %v", wins, names(items))
	}
}

// testTransfers moves a number between two volumes: every list must see the same sum.
func testTransfers(t *testing.T, s store.Transactor) {
	for _, name := range []string{"one", "two"} {
		pv := newVolume(name)
		pv.Labels["count"] = "100"
		create(t, s, pv)
	}
	together(func(i int) bool {
		for range increments {
			if i%2 == 0 {
				checkSum(t, s)
				continue
			}
			if err := transfer(t.Context(), s); err != nil && !errors.Is(err, store.ErrConflict) {
				t.Error(err)
			}
		}
		return true
	})
	checkSum(t, s)
}

func checkSum(t *testing.T, s store.Store) {
	items, _, err := store.ListOf[*v1.PersistentVolume](t.Context(), s, "")
	if err != nil {
		t.Error(err)
		return
	}
	sum := 0
	for _, pv := range items {
		count, _ := strconv.Atoi(pv.Labels["count"])
		sum += count
	}
	if sum != 200 {
		t.Errorf("a list sees a sum of %d", sum)
	}
}

func transfer(ctx context.Context, s store.Transactor) error {
	var writes []store.Write
	for name, add := range map[string]int{"one": -1, "two": 1} {
		pv, err := store.Get[*v1.PersistentVolume](ctx, s, "", name)
		if err != nil {
			return err
		}
		count, _ := strconv.Atoi(pv.Labels["count"])
		pv.Labels["count"] = strconv.Itoa(count + add)
		writes = append(writes, store.ToUpdate(pv))
	}
	_, err := s.Commit(ctx, store.Transaction{Writes: writes})
	return err
}

// testResumeWithin resumes a watch after each event of a transaction.
func testResumeWithin(t *testing.T, s store.Transactor) {
	create(t, s, newVolume("gone"))
	version := present(t, s)
	texts := []string{"Added a", "Deleted gone", "Added b", "Added c"}
	commit(t, s, store.ToCreate(newVolume("a")), store.ToDelete(volumeKey("gone"), store.Preconditions{}),
		store.ToCreate(newVolume("b")), store.ToCreate(newVolume("c")))
	create(t, s, newVolume("end"))
	texts = append(texts, "Added end")
	for len(texts) > 0 {
		want(t, watch(t, s, version), slices.Clone(texts)...)
		_, first := next(t, watch(t, s, version))
		version, texts = first.GetResourceVersion(), texts[1:]
	}
}
