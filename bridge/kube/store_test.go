package kube_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/volumekit/volumekit/bridge/kube"
	"github.com/volumekit/volumekit/bridge/kube/internal/servertest"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/store/storetest"
)

// newAPIServer returns an API server with the kinds of a store and two more, and the fake clientset that speaks to it.
func newAPIServer(t *testing.T) (*servertest.Server, *servertest.Clients) {
	t.Helper()
	return servertest.New(t, moreKinds(t), scheme.Scheme)
}

func newStore(t *testing.T) (*kube.Store, *servertest.Server) {
	t.Helper()
	server, clients := newAPIServer(t)
	s, err := kube.New(clients, kube.Options{})
	require.NoError(t, err)
	return s, server
}

func TestStore(t *testing.T) {
	servers := map[store.Store]*servertest.Server{}
	storetest.Run(t, storetest.Config{
		New: func(t *testing.T) store.Store {
			t.Helper()
			s, server := newStore(t)
			servers[s] = server
			return s
		},
		Compact: func(t *testing.T, s store.Store) {
			t.Helper()
			servers[s].Forget(2 * servertest.History)
		},
	})
}
