package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/store"
)

func watchCases() []testCase {
	return []testCase{
		{"AWatchTellsEachWriteOnceAndInOrder", testWatchOrder},
		{"AWatchBeginsAfterItsVersion", testWatchFromVersion},
		{"AWatchHoldsToItsKindAndNamespace", testWatchScope},
		{"ADeletionCarriesTheLastObject", testWatchDelete},
		{"TheEndOfFinalizersIsADeletion", testWatchFinalizers},
		{"AWatchedObjectIsACopy", testWatchCopies},
		{"CancelClosesAWatch", testWatchCancel},
		{"AFailedWriteIsNotWatched", testWatchFailures},
	}
}

// testCompacted is no [testCase], because it needs the store's help.
func testCompacted(t *testing.T, s store.Store, compact func(t *testing.T, s store.Store)) {
	pv := create(t, s, newVolume("disk"))
	old := pv.ResourceVersion
	update(t, s, pv)
	compact(t, s)
	_, err := s.Watch(t.Context(), store.PersistentVolumes, "", old)
	wantError(t, err, store.ErrCompacted)
	_, version, err := store.ListOf[*v1.PersistentVolume](t.Context(), s, "")
	if err != nil {
		t.Fatal(err)
	}
	events := watch(t, s, version)
	create(t, s, newVolume("new"))
	want(t, events, "Added new")
}

// watch watches volumes from version until the test ends.
func watch(t *testing.T, s store.Store, version string) <-chan store.Event {
	t.Helper()
	events, err := s.Watch(t.Context(), store.PersistentVolumes, "", version)
	if err != nil {
		t.Fatalf("watch: %v", err)
	}
	return events
}

// present returns the present version of the store.
func present(t *testing.T, s store.Store) string {
	t.Helper()
	list, err := s.List(t.Context(), store.PersistentVolumes, "")
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	return list.ResourceVersion
}

// patience is how long a store may take to send the event of a write. Only a broken store takes so long.
const patience = 30 * time.Second

// The ends of a watch that a test does not want.
var (
	errClosed = errors.New("the watch was closed")
	errSilent = fmt.Errorf("no event came for %v", patience)
)

// receive returns the next event, or an error that says why there is none.
func receive(events <-chan store.Event) (store.Event, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case event, ok := <-events:
		if !ok {
			return store.Event{}, errClosed
		}
		return event, nil
	case <-timer.C:
		return store.Event{}, errSilent
	}
}

// next returns the next event.
func next(t *testing.T, events <-chan store.Event) (store.Event, metav1.Object) {
	t.Helper()
	event, err := receive(events)
	if err != nil {
		t.Fatal(err)
	}
	return event, metaOf(t, event.Object)
}

// want receives one event after the other, and compares each with "Type name".
func want(t *testing.T, events <-chan store.Event, texts ...string) {
	t.Helper()
	for _, text := range texts {
		event, meta := next(t, events)
		if got := fmt.Sprintf("%s %s", event.Type, meta.GetName()); got != text {
			t.Fatalf("the event is %q; want %q", got, text)
		}
	}
}

func testWatchOrder(t *testing.T, s store.Store) {
	events := watch(t, s, present(t, s))
	var versions []string
	for i := range 20 {
		pv := create(t, s, newVolume(fmt.Sprintf("disk-%d", i)))
		versions = append(versions, pv.ResourceVersion)
		pv = update(t, s, pv)
		versions = append(versions, pv.ResourceVersion)
	}
	var got []string
	for range versions {
		_, meta := next(t, events)
		got = append(got, meta.GetResourceVersion())
	}
	if !slices.Equal(got, versions) {
		t.Errorf("watched %v; written were %v", got, versions)
	}
}

func testWatchFromVersion(t *testing.T, s store.Store) {
	first := create(t, s, newVolume("first"))
	second := create(t, s, newVolume("second"))
	update(t, s, first)
	want(t, watch(t, s, first.ResourceVersion), "Added second", "Modified first")
	want(t, watch(t, s, second.ResourceVersion), "Modified first")
	now := watch(t, s, present(t, s))
	create(t, s, newVolume("third"))
	want(t, now, "Added third")
}

func testWatchScope(t *testing.T, s store.Store) {
	events, err := s.Watch(t.Context(), store.PersistentVolumeClaims, "mine", present(t, s))
	if err != nil {
		t.Fatal(err)
	}
	create(t, s, newVolume("disk"))
	create(t, s, newClaim("other", "data"))
	create(t, s, newClaim("mine", "data"))
	_, meta := next(t, events)
	if meta.GetNamespace() != "mine" {
		t.Errorf("an event of %s/%s", meta.GetNamespace(), meta.GetName())
	}
}

func testWatchDelete(t *testing.T, s store.Store) {
	pv := newVolume("disk")
	pv.Status.Phase = v1.VolumeReleased
	created := create(t, s, pv)
	events := watch(t, s, created.ResourceVersion)
	deleteVolume(t, s, "disk")
	event, meta := next(t, events)
	last, ok := event.Object.(*v1.PersistentVolume)
	if !ok || event.Type != store.Deleted {
		t.Fatalf("%s of a %T", event.Type, event.Object)
	}
	if last.Status.Phase != v1.VolumeReleased || last.UID != created.UID {
		t.Errorf("it carries phase %q and UID %q", last.Status.Phase, last.UID)
	}
	if meta.GetResourceVersion() == created.ResourceVersion {
		t.Error("the deletion has no version of its own")
	}
	resumed := watch(t, s, meta.GetResourceVersion())
	create(t, s, newVolume("next"))
	want(t, resumed, "Added next")
}

func testWatchFinalizers(t *testing.T, s store.Store) {
	pv := newVolume("disk")
	pv.Finalizers = []string{"example.com/a"}
	events := watch(t, s, create(t, s, pv).ResourceVersion)
	deleteVolume(t, s, "disk")
	dying := volume(t, s, "disk")
	dying.Finalizers = nil
	dying.Status.Message = "last words"
	update(t, s, dying)
	want(t, events, "Modified disk")
	event, _ := next(t, events)
	if event.Type == store.Modified { // A store that writes the status apart does that first.
		event, _ = next(t, events)
	}
	last, ok := event.Object.(*v1.PersistentVolume)
	if !ok || event.Type != store.Deleted || last.Status.Message != "last words" {
		t.Errorf("%s of %v", event.Type, event.Object)
	}
}

func testWatchCopies(t *testing.T, s store.Store) {
	version := present(t, s)
	one, two := watch(t, s, version), watch(t, s, version)
	create(t, s, newVolume("disk"))
	_, first := next(t, one)
	first.GetLabels()["made"] = "the event was changed"
	_, second := next(t, two)
	if got := second.GetLabels()["made"]; got != "here" {
		t.Errorf("the other watch says: %s", got)
	}
	if got := volume(t, s, "disk").Labels["made"]; got != "here" {
		t.Errorf("the store says: %s", got)
	}
}

func testWatchCancel(t *testing.T, s store.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	events, err := s.Watch(ctx, store.PersistentVolumes, "", present(t, s))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		create(t, s, newVolume(fmt.Sprintf("disk-%d", i)))
	}
	want(t, events, "Added disk-0")
	cancel()
	for range 20 { // at most the events that were on their way, then the end
		if _, err = receive(events); err != nil {
			break
		}
	}
	if err == nil {
		t.Fatal("events come that no call has written")
	}
	wantError(t, err, errClosed)
}

func testWatchFailures(t *testing.T, s store.Store) {
	pv := create(t, s, newVolume("disk"))
	update(t, s, pv)
	events := watch(t, s, present(t, s))
	_, err := s.Update(t.Context(), pv)
	wantError(t, err, store.ErrConflict)
	_, err = s.Create(t.Context(), pv)
	wantError(t, err, store.ErrInvalid)
	wantError(t, s.Delete(t.Context(), volumeKey("disk"), store.Preconditions{UID: "other"}), store.ErrConflict)
	create(t, s, newVolume("end"))
	want(t, events, "Added end")
}
