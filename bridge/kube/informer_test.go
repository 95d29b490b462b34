package kube_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/volumekit/volumekit/bridge/kube"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/store/storetest"
)

// newInformer returns an informer that runs until the test ends.
func newInformer[L runtime.Object](t *testing.T, of runtime.Object, client interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}) cache.SharedInformer {
	t.Helper()
	informer := cache.NewSharedInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, options)
		},
		WatchFuncWithContext: client.Watch,
	}, of, 0)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		informer.RunWithContext(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return informer
}

// newInformedStore returns a store whose watches of volumes, claims and leases are fed by informers.
func newInformedStore(t *testing.T, clients kube.Client) *kube.Store {
	t.Helper()
	s, err := kube.New(clients, kube.Options{Informers: map[schema.GroupVersionKind]cache.SharedInformer{
		store.PersistentVolumes:      newInformer(t, &v1.PersistentVolume{}, clients.CoreV1().PersistentVolumes()),
		store.PersistentVolumeClaims: newInformer(t, &v1.PersistentVolumeClaim{}, clients.CoreV1().PersistentVolumeClaims("")),
		store.Leases:                 newInformer(t, &coordinationv1.Lease{}, clients.CoordinationV1().Leases("")),
	}})
	require.NoError(t, err)
	return s
}

// TestWatchesShareAnInformer has many watches be one for the API server.
func TestWatchesShareAnInformer(t *testing.T) {
	server, clients := newAPIServer(t)
	s := newInformedStore(t, clients)
	one, other := watchVolumes(t, s), watchVolumes(t, s)
	created := createVolume(t, s, "disk")
	for _, events := range []<-chan store.Event{one, other} {
		require.Equal(t, created, requireEvent(t, events, store.Added, "disk"))
	}
	require.Len(t, server.Begun(), 1)
}

func TestStoreWithInformers(t *testing.T) {
	storetest.Run(t, storetest.Config{New: func(t *testing.T) store.Store {
		t.Helper()
		_, clients := newAPIServer(t)
		return newInformedStore(t, clients)
	}})
	for _, c := range suite() {
		t.Run(c.name, func(t *testing.T) {
			_, clients := newAPIServer(t)
			c.run(t, newInformedStore(t, clients))
		})
	}
}
