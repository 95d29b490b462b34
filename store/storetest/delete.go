package storetest

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/store"
)

func deleteCases() []testCase {
	return []testCase{
		{"DeleteHoldsToPreconditions", testPreconditions},
		{"DeleteOfThatVeryObject", testTypedDelete},
		{"FinalizersKeepAnObject", testFinalizers},
		{"NoFinalizerIsAddedToADyingObject", testLateFinalizer},
		{"ADeletedNameIsFree", testNameIsFree},
	}
}

func testPreconditions(t *testing.T, s store.Store) {
	old := create(t, s, newVolume("disk"))
	pv := update(t, s, old)
	for name, p := range map[string]store.Preconditions{
		"another UID":    {UID: "other"},
		"an old version": {ResourceVersion: old.ResourceVersion},
		"one of two":     {UID: pv.UID, ResourceVersion: old.ResourceVersion},
	} {
		t.Run(name, func(t *testing.T) {
			wantError(t, s.Delete(t.Context(), volumeKey("disk"), p), store.ErrConflict)
		})
	}
	volume(t, s, "disk")
	if err := s.Delete(t.Context(), volumeKey("disk"), store.Preconditions{UID: pv.UID, ResourceVersion: pv.ResourceVersion}); err != nil {
		t.Fatalf("delete with what holds: %v", err)
	}
	_, err := s.Get(t.Context(), volumeKey("disk"))
	wantError(t, err, store.ErrNotFound)
}

func testTypedDelete(t *testing.T, s store.Store) {
	first := create(t, s, newVolume("disk"))
	deleteVolume(t, s, "disk")
	second := create(t, s, newVolume("disk"))
	wantError(t, store.Delete(t.Context(), s, first), store.ErrConflict)
	wantError(t, store.Delete(t.Context(), s, newVolume("disk")), store.ErrInvalid) // it was never read
	update(t, s, second)
	if err := store.Delete(t.Context(), s, second); err != nil {
		t.Fatalf("a change of the object hinders its deletion: %v", err)
	}
}

func testFinalizers(t *testing.T, s store.Store) {
	pv := newVolume("disk")
	pv.Finalizers = []string{"example.com/a", "example.com/b"}
	version := create(t, s, pv).ResourceVersion
	deleteVolume(t, s, "disk")
	dying := volume(t, s, "disk")
	if dying.DeletionTimestamp == nil || dying.ResourceVersion == version {
		t.Fatalf("deletion time %v at version %s", dying.DeletionTimestamp, dying.ResourceVersion)
	}
	deleteVolume(t, s, "disk")
	if again := volume(t, s, "disk"); again.ResourceVersion != dying.ResourceVersion {
		t.Error("a second deletion wrote again")
	}
	dying.Finalizers = []string{"example.com/b"}
	dying = update(t, s, dying)
	volume(t, s, "disk")
	dying.Finalizers = nil
	update(t, s, dying)
	_, err := s.Get(t.Context(), volumeKey("disk"))
	wantError(t, err, store.ErrNotFound)
}

func testLateFinalizer(t *testing.T, s store.Store) {
	pv := newVolume("disk")
	pv.Finalizers = []string{"example.com/a"}
	create(t, s, pv)
	deleteVolume(t, s, "disk")
	dying := volume(t, s, "disk")
	dying.Finalizers = append(dying.Finalizers, "example.com/late")
	_, err := s.Update(t.Context(), dying)
	wantError(t, err, store.ErrInvalid)
}

func testNameIsFree(t *testing.T, s store.Store) {
	first := newVolume("disk")
	first.Status.Phase = v1.VolumeFailed
	first = create(t, s, first)
	deleteVolume(t, s, "disk")
	second := create(t, s, newVolume("disk"))
	if first.UID == second.UID || first.ResourceVersion == second.ResourceVersion {
		t.Error("the second object inherited from the first")
	}
	if second.Status.Phase == v1.VolumeFailed {
		t.Error("the second object has the status of the first")
	}
}
