package storetest

import (
	"context"
	"reflect"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/store"
)

func writeCases() []testCase {
	return []testCase{
		{"CreateFillsInWhatTheStoreKnows", testCreateFillsIn},
		{"CreateKeepsAGivenUIDOrRefusesIt", testCreateKeepsUID},
		{"CreateOfWhatExistsLeavesTheOld", testCreateExisting},
		{"CreateRefusesAResourceVersion", testCreateWithVersion},
		{"CreateIgnoresADeletionTime", testCreateIgnoresDeletion},
		{"UpdateNeedsTheVersion", testUpdateNeedsVersion},
		{"UpdateOfAnOldVersionConflicts", testUpdateConflict},
		{"UpdateOfWhatIsGoneIsNotFound", testUpdateGone},
		{"UpdateKeepsIdentity", testUpdateKeepsIdentity},
		{"UpdateGivesANewVersionEachTime", testUpdateNewVersion},
		{"GetOfWhatIsNotThereIsNotFound", testGetMissing},
		{"MalformedIsInvalid", testInvalid},
		{"CopiesInAndOut", testCopies},
		{"ListIsSortedAndByNamespace", testList},
		{"KindsAreApart", testKindsApart},
		{"AnEndedContextEndsTheCall", testEndedContext},
	}
}

func testCreateFillsIn(t *testing.T, s store.Store) {
	created := create(t, s, newVolume("disk"))
	if created.UID == "" || created.ResourceVersion == "" || created.CreationTimestamp.IsZero() {
		t.Errorf("UID %q, version %q, created %v: none may be empty", created.UID, created.ResourceVersion, created.CreationTimestamp)
	}
	if created.GroupVersionKind() != store.PersistentVolumes {
		t.Errorf("its kind is %v", created.GroupVersionKind())
	}
	if got := volume(t, s, "disk"); !reflect.DeepEqual(got, created) {
		t.Errorf("get returned\n%v, create\n%v", got, created)
	}
	if other := create(t, s, newVolume("other")); other.UID == created.UID {
		t.Errorf("two objects have UID %q", other.UID)
	}
}

func testCreateKeepsUID(t *testing.T, s store.Store) {
	pv := newVolume("disk")
	pv.UID = "given"
	created, err := store.Create(t.Context(), s, pv)
	if err != nil {
		wantError(t, err, store.ErrInvalid)
		return
	}
	if created.UID != "given" {
		t.Errorf("its UID is %q", created.UID)
	}
}

func testCreateExisting(t *testing.T, s store.Store) {
	first := create(t, s, newVolume("disk"))
	_, err := s.Create(t.Context(), newVolume("disk"))
	wantError(t, err, store.ErrAlreadyExists)
	if got := volume(t, s, "disk"); got.UID != first.UID || got.ResourceVersion != first.ResourceVersion {
		t.Error("the object was changed")
	}
}

func testCreateWithVersion(t *testing.T, s store.Store) {
	pv := create(t, s, newVolume("disk"))
	pv.Name = "copy"
	_, err := s.Create(t.Context(), pv)
	wantError(t, err, store.ErrInvalid)
}

func testCreateIgnoresDeletion(t *testing.T, s store.Store) {
	pv := newVolume("disk")
	now := metav1.Now()
	pv.DeletionTimestamp = &now
	if created := create(t, s, pv); created.DeletionTimestamp != nil {
		t.Error("a new object is being deleted")
	}
}

func testUpdateNeedsVersion(t *testing.T, s store.Store) {
	create(t, s, newVolume("disk"))
	_, err := s.Update(t.Context(), newVolume("disk"))
	wantError(t, err, store.ErrInvalid)
}

func testUpdateConflict(t *testing.T, s store.Store) {
	old := create(t, s, newVolume("disk"))
	changed := old.DeepCopy()
	changed.Status.Phase = v1.VolumeBound
	update(t, s, changed)
	_, err := s.Update(t.Context(), old)
	wantError(t, err, store.ErrConflict)
	if got := volume(t, s, "disk"); got.Status.Phase != v1.VolumeBound {
		t.Errorf("the loser's write is there: phase %q", got.Status.Phase)
	}
}

func testUpdateGone(t *testing.T, s store.Store) {
	first := create(t, s, newVolume("disk"))
	deleteVolume(t, s, "disk")
	_, err := s.Update(t.Context(), first)
	wantError(t, err, store.ErrNotFound)

	second := create(t, s, newVolume("disk"))
	first.ResourceVersion = second.ResourceVersion
	_, err = s.Update(t.Context(), first)
	wantError(t, err, store.ErrNotFound) // the same name, another UID
}

func testUpdateKeepsIdentity(t *testing.T, s store.Store) {
	created := create(t, s, newVolume("disk"))
	changed := created.DeepCopy()
	changed.UID = ""
	changed.CreationTimestamp = metav1.Time{}
	now := metav1.Now()
	changed.DeletionTimestamp = &now
	updated := update(t, s, changed)
	if updated.UID != created.UID || !updated.CreationTimestamp.Equal(&created.CreationTimestamp) {
		t.Errorf("UID %q became %q, created %v became %v",
			created.UID, updated.UID, created.CreationTimestamp, updated.CreationTimestamp)
	}
	if updated.DeletionTimestamp != nil {
		t.Error("an update began the deletion")
	}
}

func testUpdateNewVersion(t *testing.T, s store.Store) {
	pv := create(t, s, newVolume("disk"))
	seen := map[string]bool{pv.ResourceVersion: true}
	for range 3 {
		pv = update(t, s, pv)
		if seen[pv.ResourceVersion] {
			t.Fatalf("version %q was given twice", pv.ResourceVersion)
		}
		seen[pv.ResourceVersion] = true
	}
}

func testGetMissing(t *testing.T, s store.Store) {
	_, err := s.Get(t.Context(), volumeKey("disk"))
	wantError(t, err, store.ErrNotFound)
	wantError(t, s.Delete(t.Context(), volumeKey("disk"), store.Preconditions{}), store.ErrNotFound)
}

func testInvalid(t *testing.T, s store.Store) {
	unknown := v1.SchemeGroupVersion.WithKind("Service")
	named := newVolume("disk")
	named.Namespace = "default"
	for name, obj := range map[string]runtime.Object{
		"no name":                             newVolume(""),
		"a name with a slash":                 newVolume("a/b"),
		"a claim without namespace":           newClaim("", "data"),
		"a volume in a namespace":             named,
		"a kind that no store keeps":          &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}},
		"nil of a type that the store keeps":  (*v1.PersistentVolume)(nil),
		"nil":                                 nil,
		"a namespace that is no single label": newClaim("a.b", "data"),
		"a value that is no UTF-8":            withText("text", "\xff"),
		"a key that is no UTF-8":              withText("\xff", "text"),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Create(t.Context(), obj)
			wantError(t, err, store.ErrInvalid)
		})
	}
	_, err := s.Get(t.Context(), store.Key{Kind: unknown, Namespace: "default", Name: "web"})
	wantError(t, err, store.ErrInvalid)
	_, err = s.List(t.Context(), unknown, "")
	wantError(t, err, store.ErrInvalid)
	_, err = s.Watch(t.Context(), store.PersistentVolumes, "", "no version")
	wantError(t, err, store.ErrInvalid)
}

func testCopies(t *testing.T, s store.Store) {
	given := newVolume("disk")
	created := create(t, s, given)
	given.Labels["made"] = "given was changed"
	created.Labels["made"] = "created was changed"
	read := volume(t, s, "disk")
	read.Labels["made"] = "read was changed"
	listed, _, err := store.ListOf[*v1.PersistentVolume](t.Context(), s, "")
	if err != nil {
		t.Fatal(err)
	}
	listed[0].Labels["made"] = "listed was changed"
	if got := volume(t, s, "disk").Labels["made"]; got != "here" {
		t.Errorf("the stored object says: %s", got)
	}
	if given.UID != "" || given.ResourceVersion != "" {
		t.Error("the object that was given was written to")
	}
}

func testList(t *testing.T, s store.Store) {
	for _, c := range [][2]string{{"b", "one"}, {"a", "two"}, {"a", "one"}} {
		create(t, s, newClaim(c[0], c[1]))
	}
	for namespace, want := range map[string][]string{"": {"a/one", "a/two", "b/one"}, "a": {"a/one", "a/two"}, "c": nil} {
		claims, version, err := store.ListOf[*v1.PersistentVolumeClaim](t.Context(), s, namespace)
		if err != nil {
			t.Fatal(err)
		}
		if got := names(claims); !slices.Equal(got, want) {
			t.Errorf("namespace %q holds %v; want %v", namespace, got, want)
		}
		if version == "" {
			t.Error("the list has no version")
		}
	}
}

func testKindsApart(t *testing.T, s store.Store) {
	create(t, s, newVolume("same"))
	create(t, s, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "same"}})
	deleteVolume(t, s, "same")
	if _, err := store.Get[*v1.Node](t.Context(), s, "", "same"); err != nil {
		t.Errorf("the node of that name: %v", err)
	}
}

func testEndedContext(t *testing.T, s store.Store) {
	pv := create(t, s, newVolume("disk"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Get(ctx, volumeKey("disk"))
	wantError(t, err, context.Canceled)
	_, err = s.Create(ctx, newVolume("late"))
	wantError(t, err, context.Canceled)
	_, err = s.Update(ctx, pv)
	wantError(t, err, context.Canceled)
	_, err = s.List(ctx, store.PersistentVolumes, "")
	wantError(t, err, context.Canceled)
	_, err = s.Watch(ctx, store.PersistentVolumes, "", pv.ResourceVersion)
	wantError(t, err, context.Canceled)
	wantError(t, s.Delete(ctx, volumeKey("disk"), store.Preconditions{}), context.Canceled)
}

func withText(key, value string) *v1.ConfigMap {
	return &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "text"}, Data: map[string]string{key: value}}
}
