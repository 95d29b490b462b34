package store_test

import (
	"context"
	"fmt"
	"regexp"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/store/storetest"
)

func TestMemory(t *testing.T) {
	storetest.Run(t, storetest.Config{
		New: func(*testing.T) store.Store { return store.NewMemory(store.MemoryOptions{History: 500}) },
		Compact: func(t *testing.T, s store.Store) {
			for i := range 1001 {
				createVolume(t, s, fmt.Sprintf("filler-%d", i))
			}
		},
	})
}

func createVolume(t *testing.T, s store.Store, name string) *v1.PersistentVolume {
	t.Helper()
	pv, err := store.Create(t.Context(), s, &v1.PersistentVolume{ObjectMeta: objectMeta("", name, "")})
	require.NoError(t, err)
	return pv
}

// A watch without a reader neither holds up a writer nor keeps more than the history: it is closed.
func TestMemoryClosesAWatchThatFallsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory(store.MemoryOptions{History: 10})
		first := createVolume(t, s, "first")
		slow, err := s.Watch(t.Context(), store.PersistentVolumes, "", first.ResourceVersion)
		require.NoError(t, err)
		for i := range 1000 {
			createVolume(t, s, fmt.Sprintf("disk-%d", i))
		}
		count := 0
		for range slow {
			count++
		}
		assert.Less(t, count, 1000, "the watch was cut off, and its channel closed")
		_, err = s.Watch(t.Context(), store.PersistentVolumes, "", first.ResourceVersion)
		require.ErrorIs(t, err, store.ErrCompacted)
	})
}

// Writes of one kind do not make the store forget another.
func TestMemoryRemembersEachKindByItself(t *testing.T) {
	s := store.NewMemory(store.MemoryOptions{History: 10})
	node, err := store.Create(t.Context(), s, &v1.Node{ObjectMeta: objectMeta("", "one", "")})
	require.NoError(t, err)
	for i := range 100 {
		createVolume(t, s, fmt.Sprintf("disk-%d", i))
	}
	_, err = s.Watch(t.Context(), store.Nodes, "", node.ResourceVersion)
	require.NoError(t, err)
}

func TestMemoryRefusesAVersionOfTheFuture(t *testing.T) {
	s := store.NewMemory(store.MemoryOptions{})
	_, err := s.Watch(t.Context(), store.Nodes, "", "7")
	require.ErrorIs(t, err, store.ErrCompacted, "it is the version of a store that is no more: list again")
}

// The goroutine of a watch ends with its context, also without a reader and a writer: the bubble would not end
// otherwise.
func TestMemoryWatchEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory(store.MemoryOptions{})
		ctx, cancel := context.WithCancel(t.Context())
		_, err := s.Watch(ctx, store.PersistentVolumes, "", "0")
		require.NoError(t, err)
		synctest.Wait()
		createVolume(t, s, "unread")
		synctest.Wait()
		cancel()
	})
}

func TestUIDsAreUUIDs(t *testing.T) {
	s := store.NewMemory(store.MemoryOptions{})
	uuid := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	for i := range 100 {
		assert.Regexp(t, uuid, string(createVolume(t, s, fmt.Sprintf("disk-%d", i)).UID))
	}
}

func BenchmarkMemoryUpdate(b *testing.B) {
	s := store.NewMemory(store.MemoryOptions{})
	pv, err := store.Create(b.Context(), s, &v1.PersistentVolume{ObjectMeta: objectMeta("", "disk", "")})
	require.NoError(b, err)
	for b.Loop() {
		if pv, err = store.Update(b.Context(), s, pv); err != nil {
			b.Fatal(err)
		}
	}
}
