package kube_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/bridge/kube"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/store/storetest"
)

func newStore(t *testing.T) (*kube.Store, *apiServer) {
	t.Helper()
	server, clients := newAPIServer(t)
	s, err := kube.New(clients, kube.Options{})
	require.NoError(t, err)
	return s, server
}

func TestStore(t *testing.T) {
	servers := map[store.Store]*apiServer{}
	storetest.Run(t, storetest.Config{
		New: func(t *testing.T) store.Store {
			t.Helper()
			s, server := newStore(t)
			servers[s] = server
			return s
		},
		Compact: func(t *testing.T, s store.Store) {
			t.Helper()
			servers[s].forget(2 * history)
		},
	})
}
