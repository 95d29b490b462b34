package kube_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
)

// rule is what a store is held to, on client-go's fake and on a real API server.
type rule struct {
	name string
	run  func(t *testing.T, s store.Store)
}

func suite() []rule {
	return []rule{
		{"AnUpdateWritesTheStatusAndTheRest", testParts},
		{"AnUpdateThatChangesNothingWritesNothing", testNoChange},
		{"ANewObjectHasItsStatus", testCreateStatus},
		{"TheLastWordsOfAStatus", testLastWords},
		{"AnotherObjectOfTheNameIsNotFound", testAnotherLease},
		{"ManagedFieldsStayWithTheServer", testManagedFields},
		{"WhatTheServerRefusesIsInvalid", testRefused},
		{"Controllers", testControllers},
		{"Schedulers", testSchedulers},
	}
}

// testParts changes the status, the rest, and both at once, of each kind that has a status.
func testParts(t *testing.T, s store.Store) {
	for name, obj := range withStatus() {
		t.Run(name, func(t *testing.T) {
			created, err := s.Create(t.Context(), obj)
			require.NoError(t, err)
			now := created.(store.Object)
			for _, step := range []struct{ label, status string }{{"", "one"}, {"two", "one"}, {"three", "three"}} {
				changed := now.DeepCopyObject().(store.Object)
				changed.SetLabels(map[string]string{"says": step.label})
				say(changed, step.status)
				updated, err := s.Update(t.Context(), changed)
				require.NoError(t, err)
				read, err := s.Get(t.Context(), keyOf(t, obj))
				require.NoError(t, err)
				require.Equal(t, read, updated)
				require.Equal(t, step.label, read.(store.Object).GetLabels()["says"])
				require.Equal(t, step.status, said(read))
				_, err = s.Update(t.Context(), now)
				require.ErrorIs(t, err, store.ErrConflict)
				now = read.(store.Object)
			}
		})
	}
}

// withStatus returns an object of each kind that has a status.
func withStatus() map[string]store.Object {
	return map[string]store.Object{
		"PersistentVolume":      newVolume("parts"),
		"PersistentVolumeClaim": newClaim("parts", ""),
		"Pod":                   newPod("parts", "", ""),
		"Node":                  &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "parts"}},
		"VolumeAttachment": &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: "parts"},
			Spec: storagev1.VolumeAttachmentSpec{
				Attacher: "example.com", NodeName: "parts", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("parts")},
			},
		},
	}
}

// say puts a text into the status of an object.
func say(obj runtime.Object, text string) {
	switch o := obj.(type) {
	case *v1.PersistentVolume:
		o.Status.Message = text
	case *v1.PersistentVolumeClaim:
		o.Status.Conditions = []v1.PersistentVolumeClaimCondition{{Type: "Says", Status: v1.ConditionTrue, Message: text}}
	case *v1.Pod:
		o.Status.Message = text
	case *v1.Node:
		o.Status.VolumesAttached = []v1.AttachedVolume{{Name: "disk", DevicePath: text}}
	case *storagev1.VolumeAttachment:
		o.Status.AttachmentMetadata = map[string]string{"says": text}
	}
}

func said(obj runtime.Object) string {
	switch o := obj.(type) {
	case *v1.PersistentVolume:
		return o.Status.Message
	case *v1.PersistentVolumeClaim:
		return o.Status.Conditions[0].Message
	case *v1.Pod:
		return o.Status.Message
	case *v1.Node:
		return o.Status.VolumesAttached[0].DevicePath
	case *storagev1.VolumeAttachment:
		return o.Status.AttachmentMetadata["says"]
	}
	return ""
}

func testNoChange(t *testing.T, s store.Store) {
	pv := createVolume(t, s, "still")
	events := watchVolumes(t, s)
	same, err := store.Update(t.Context(), s, pv)
	require.NoError(t, err)
	require.Equal(t, pv, same)
	createVolume(t, s, "next")
	requireEvent(t, events, store.Added, "next")
}

func testCreateStatus(t *testing.T, s store.Store) {
	events := watchVolumes(t, s)
	pv := newVolume("available")
	pv.Status.Phase = v1.VolumeAvailable
	created, err := store.Create(t.Context(), s, pv)
	require.NoError(t, err)
	require.Equal(t, v1.VolumeAvailable, created.Status.Phase)
	requireEvent(t, events, store.Added, "available")
	require.Equal(t, created, requireEvent(t, events, store.Modified, "available"), "the second write is the last")
}

// testLastWords takes the last finalizer off and changes the status, and the deletion tells both.
func testLastWords(t *testing.T, s store.Store) {
	pv := newVolume("dying")
	pv.Finalizers = []string{"example.com/a"}
	pv, err := store.Create(t.Context(), s, pv)
	require.NoError(t, err)
	require.NoError(t, store.Delete(t.Context(), s, pv))
	events := watchVolumes(t, s)
	pv = getVolume(t, s, "dying")
	pv.Finalizers, pv.Status.Message = nil, "last words"
	_, err = store.Update(t.Context(), s, pv)
	require.NoError(t, err)
	requireEvent(t, events, store.Modified, "dying")
	require.Equal(t, "last words", requireEvent(t, events, store.Deleted, "dying").Status.Message)
}

// testAnotherLease updates an object of a kind that an API server would create instead.
func testAnotherLease(t *testing.T, s store.Store) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "lease"}}
	first, err := store.Create(t.Context(), s, lease)
	require.NoError(t, err)
	require.NoError(t, store.Delete(t.Context(), s, first))
	for _, uid := range []types.UID{first.UID, ""} {
		first.UID = uid
		_, err = store.Update(t.Context(), s, first)
		require.ErrorIs(t, err, store.ErrNotFound)
	}
	second, err := store.Create(t.Context(), s, lease)
	require.NoError(t, err)
	second.UID = "other"
	_, err = store.Update(t.Context(), s, second)
	require.ErrorIs(t, err, store.ErrNotFound)
}

func testManagedFields(t *testing.T, s store.Store) {
	pv := createVolume(t, s, "managed")
	require.Empty(t, pv.ManagedFields)
	events := watchVolumes(t, s)
	pv.Status.Phase = v1.VolumeAvailable
	_, err := store.Update(t.Context(), s, pv)
	require.NoError(t, err)
	require.Empty(t, requireEvent(t, events, store.Modified, "managed").ManagedFields)
	require.Empty(t, getVolume(t, s, "managed").ManagedFields)
}

// testRefused gives the server what it does not take; what the fake server does not know of it takes.
func testRefused(t *testing.T, s store.Store) {
	created := createVolume(t, s, "refused")
	created.Name = "renamed"
	_, err := store.Update(t.Context(), s, created)
	require.ErrorIs(t, err, store.ErrNotFound)
	pv := newVolume("given")
	pv.UID = "given"
	_, err = store.Create(t.Context(), s, pv)
	require.ErrorIs(t, err, store.ErrInvalid)
	_, err = s.Get(t.Context(), keyOf(t, pv))
	require.ErrorIs(t, err, store.ErrNotFound)
}

func keyOf(t *testing.T, obj runtime.Object) store.Key {
	t.Helper()
	key, err := store.KeyOf(obj)
	require.NoError(t, err)
	return key
}

func newVolume(name string) *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{
			AccessModes:            []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Capacity:               v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
			PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/nowhere/" + name}},
		},
	}
}

func newClaim(name, class string) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			AccessModes:      []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources:        v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
}

// newPod returns a pod that uses a claim, if one is named, on a node.
func newPod(name, node, claim string) *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []v1.Container{{Name: "main", Image: "example.com/image"}},
		},
	}
	if claim != "" {
		pod.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}}
	}
	return pod
}

func createVolume(t *testing.T, s store.Store, name string) *v1.PersistentVolume {
	t.Helper()
	created, err := store.Create(t.Context(), s, newVolume(name))
	require.NoError(t, err)
	return created
}

func getVolume(t *testing.T, s store.Store, name string) *v1.PersistentVolume {
	t.Helper()
	pv, err := store.Get[*v1.PersistentVolume](t.Context(), s, "", name)
	require.NoError(t, err)
	return pv
}

// watchVolumes watches volumes from now on.
func watchVolumes(t *testing.T, s store.Store) <-chan store.Event {
	t.Helper()
	list, err := s.List(t.Context(), store.PersistentVolumes, "")
	require.NoError(t, err)
	events, err := s.Watch(t.Context(), store.PersistentVolumes, "", list.ResourceVersion)
	require.NoError(t, err)
	return events
}

// patience is how long is waited for what must come.
const patience = time.Minute

func requireEvent(t *testing.T, events <-chan store.Event, want store.EventType, name string) *v1.PersistentVolume {
	t.Helper()
	select {
	case event, open := <-events:
		require.True(t, open, "the watch was closed")
		pv := event.Object.(*v1.PersistentVolume)
		require.Equal(t, string(want)+" "+name, string(event.Type)+" "+pv.Name)
		return pv
	case <-time.After(patience):
		t.Fatal("no event comes")
		return nil
	}
}
