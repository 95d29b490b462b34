package etcd_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/etcd"
	"github.com/volumekit/volumekit/store"
)

// nodeLease is where a node shows that it is alive.
func nodeLease(node types.NodeName) types.NamespacedName {
	return types.NamespacedName{Namespace: "nodes", Name: string(node)}
}

// testHold gives a volume to nodes that are alive, dead, and too late.
func testHold(t *testing.T, s *etcd.Store) {
	const volume = "volumekit.io/loop-block/disk"
	holdFor := func(node types.NodeName) error { return s.Hold(t.Context(), volume, node, nodeLease(node)) }
	holder := func() types.NodeName {
		node, err := s.Holder(t.Context(), volume)
		require.NoError(t, err)
		return node
	}
	live := func(node types.NodeName) store.Lease {
		lease, err := s.AcquireLease(t.Context(), store.LeaseRequest{Name: nodeLease(node), Holder: string(node), TTL: time.Hour})
		require.NoError(t, err)
		return lease
	}
	require.ErrorIs(t, holdFor("one"), etcd.ErrNotAlive)
	assert.Empty(t, holder())

	lease := live("one")
	live("two")
	leases, err := s.Leases(t.Context())
	require.NoError(t, err)
	require.Len(t, leases, 2)
	assert.Equal(t, nodeLease("two"), store.NameOf(leases[1]))
	assert.Equal(t, "two", *leases[1].Spec.HolderIdentity)
	require.NoError(t, holdFor("one"))
	require.NoError(t, holdFor("one"), "it has it")
	var held *etcd.HeldError
	require.ErrorAs(t, holdFor("two"), &held)
	assert.Equal(t, types.NodeName("one"), held.Node)

	require.NoError(t, s.ReleaseLease(t.Context(), lease))
	require.ErrorAs(t, holdFor("two"), &held, "silence proves nothing")
	require.ErrorIs(t, holdFor("one"), etcd.ErrNotAlive)
	require.NoError(t, s.Release(t.Context(), volume, "two"), "which does not have it")
	assert.Equal(t, types.NodeName("one"), holder())
	require.NoError(t, s.Release(t.Context(), volume, "one"))
	require.NoError(t, holdFor("two"))
	assert.Equal(t, types.NodeName("two"), holder())

	testOneHolder(t, s, live)
}

// testOneHolder lets many nodes ask at once.
func testOneHolder(t *testing.T, s *etcd.Store, live func(types.NodeName) store.Lease) {
	for round := range 10 {
		var asking sync.WaitGroup
		var mu sync.Mutex
		var holders []types.NodeName
		for i := range 4 {
			node := types.NodeName(fmt.Sprintf("node-%d", i))
			live(node)
			asking.Go(func() {
				if s.Hold(t.Context(), fmt.Sprintf("disk-%d", round), node, nodeLease(node)) == nil {
					mu.Lock()
					defer mu.Unlock()
					holders = append(holders, node)
				}
			})
		}
		asking.Wait()
		require.Len(t, holders, 1)
	}
}
