package kube_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/bridge/kube"
	"github.com/volumekit/volumekit/store"
)

var (
	services        = v1.SchemeGroupVersion.WithKind("Service")
	serviceAccounts = v1.SchemeGroupVersion.WithKind("ServiceAccount")
)

// moreKinds has kinds that stores do not keep unless they are told to; the status of the first is written apart.
func moreKinds(t *testing.T) *store.KindTable {
	t.Helper()
	kinds, err := store.NewKindTable(
		store.Kind{GroupVersionKind: services, Object: &v1.Service{}, Namespaced: true},
		store.Kind{GroupVersionKind: serviceAccounts, Object: &v1.ServiceAccount{}, Namespaced: true},
	)
	require.NoError(t, err)
	return kinds
}

func TestTheStoreKeepsMoreKindsByTheirClients(t *testing.T) {
	_, clients := newAPIServer(t)
	_, err := kube.New(clients, kube.Options{Kinds: moreKinds(t)})
	require.ErrorIs(t, err, store.ErrInvalid, "the client of a kind is missing")
	s, err := kube.New(clients, kube.Options{Kinds: moreKinds(t), Resources: map[schema.GroupVersionKind]kube.Resource{
		services: kube.WithStatus(clients.CoreV1().Services), serviceAccounts: kube.Whole(clients.CoreV1().ServiceAccounts),
	}})
	require.NoError(t, err)
	_, version, err := store.ListOf[*v1.Service](t.Context(), s, "")
	require.NoError(t, err)
	events, err := s.Watch(t.Context(), services, "", version)
	require.NoError(t, err)
	service := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	service.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	created, err := store.Create(t.Context(), s, service)
	require.NoError(t, err)
	assert.Equal(t, services, created.GroupVersionKind())
	assert.Equal(t, service.Status, created.Status)
	found, err := store.Get[*v1.Service](t.Context(), s, "default", "web")
	require.NoError(t, err)
	found.Status.LoadBalancer.Ingress, found.Labels = nil, map[string]string{"a": "b"}
	updated, err := store.Update(t.Context(), s, found)
	require.NoError(t, err)
	assert.Empty(t, updated.Status.LoadBalancer.Ingress)
	assert.Equal(t, found.Labels, updated.Labels)
	require.NoError(t, store.Delete(t.Context(), s, updated))
	event := <-events
	assert.Equal(t, services, event.Object.GetObjectKind().GroupVersionKind())
}

// A kind without a status of its own is written by one request.
func TestAKindMayBeWrittenAsAWhole(t *testing.T) {
	_, clients := newAPIServer(t)
	s, err := kube.New(clients, kube.Options{Kinds: moreKinds(t), Resources: map[schema.GroupVersionKind]kube.Resource{
		serviceAccounts: kube.Whole(clients.CoreV1().ServiceAccounts), services: kube.WithStatus(clients.CoreV1().Services),
	}})
	require.NoError(t, err)
	created, err := store.Create(t.Context(), s, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}})
	require.NoError(t, err)
	created.Labels = map[string]string{"a": "b"}
	updated, err := store.Update(t.Context(), s, created)
	require.NoError(t, err)
	assert.Equal(t, created.Labels, updated.Labels)
}
