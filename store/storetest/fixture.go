package storetest

import (
	"errors"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/store"
)

// The objects are such as a Kubernetes API server takes.

func newVolume(name string) *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"made": "here"}},
		Spec: v1.PersistentVolumeSpec{
			AccessModes:            []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Capacity:               oneGi(),
			PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/nowhere/" + name}},
		},
	}
}

func newClaim(namespace, name string) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources:   v1.VolumeResourceRequirements{Requests: oneGi()},
		},
	}
}

func oneGi() v1.ResourceList {
	return v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
}

func volumeKey(name string) store.Key { return store.Key{Kind: store.PersistentVolumes, Name: name} }

// create stores obj, which must work.
func create[T store.Object](t *testing.T, s store.Store, obj T) T {
	t.Helper()
	created, err := store.Create(t.Context(), s, obj)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	return created
}

// update replaces obj by one that differs from it at least in a label, which must work.
func update[T store.Object](t *testing.T, s store.Store, obj T) T {
	t.Helper()
	changed, ok := obj.DeepCopyObject().(T)
	if !ok {
		t.Fatalf("the copy of a %T is none", obj)
	}
	changed.SetLabels(map[string]string{"made": "here", "was-at": obj.GetResourceVersion()})
	updated, err := store.Update(t.Context(), s, changed)
	if err != nil {
		t.Fatalf("update: %v", err)
	}
	return updated
}

// volume reads a volume, which must be there.
func volume(t *testing.T, s store.Store, name string) *v1.PersistentVolume {
	t.Helper()
	pv, err := store.Get[*v1.PersistentVolume](t.Context(), s, "", name)
	if err != nil {
		t.Fatalf("get: %v", err)
	}
	return pv
}

// deleteVolume deletes a volume, which must work.
func deleteVolume(t *testing.T, s store.Store, name string) {
	t.Helper()
	if err := s.Delete(t.Context(), volumeKey(name), store.Preconditions{}); err != nil {
		t.Fatalf("delete: %v", err)
	}
}

// wantError fails the test unless err matches want.
func wantError(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("the error is %v; it must match %q", err, want)
	}
}

// metaOf returns the metadata of an object of a store.
func metaOf(t *testing.T, obj runtime.Object) metav1.Object {
	t.Helper()
	meta, ok := obj.(metav1.Object)
	if !ok {
		t.Fatalf("%T has no metadata", obj)
	}
	return meta
}

// names returns the names of objects.
func names[T store.Object](objects []T) []string {
	var names []string
	for _, obj := range objects {
		names = append(names, obj.GetNamespace()+"/"+obj.GetName())
	}
	return names
}
