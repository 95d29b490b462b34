package store_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/store"
)

// lateLists is a store whose lists are late: each was read before it is answered.
type lateLists struct {
	store.Store
	read, answer chan struct{}
}

func (s *lateLists) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	list, err := s.Store.List(ctx, kind, namespace)
	s.read <- struct{}{}
	<-s.answer
	return list, err
}

// TestMirrorKeepsWhatIsPutWhileItLists: what its owner has written is there for its next decision, and never told to be gone, also
// when a list that was read before comes after it.
func TestMirrorKeepsWhatIsPutWhileItLists(t *testing.T) {
	memory := store.NewMemory(store.MemoryOptions{})
	old := createVolume(t, memory, "old")
	late := &lateLists{memory, make(chan struct{}), make(chan struct{})}
	watches := &breaker{Store: late}
	m := store.NewMirror[*v1.PersistentVolume](&watched{late, watches}, store.MirrorOptions{InitialBackoff: 1, MaxBackoff: 1})
	byClass := store.NewIndex(m, func(pv *v1.PersistentVolume) []string { return []string{pv.Spec.StorageClassName} })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	told := make(chan string, 100)
	go func() {
		defer close(ended)
		m.Follow(ctx, func(pv *v1.PersistentVolume) {
			if _, ok := m.Get(store.NameOf(pv)); !ok {
				told <- pv.Name + " is gone"
			}
			if pv.Name == "end" {
				told <- pv.Name
			}
		})
	}()
	<-late.read
	late.answer <- struct{}{}
	require.True(t, m.WaitSynced(ctx))

	watches.mu.Lock()
	watches.cut()
	watches.mu.Unlock()
	<-late.read
	m.Put(createVolume(t, memory, "new"))
	m.Put(setClass(t, memory, "old", "fast"))
	late.answer <- struct{}{}
	createVolume(t, memory, "end")
	require.Equal(t, "end", <-told)
	_, ok := m.Get(store.NameOf(&v1.PersistentVolume{ObjectMeta: objectMeta("", "new", "")}))
	assert.True(t, ok)
	assert.Len(t, byClass.Get("fast"), 1)
	require.NoError(t, store.Delete(t.Context(), memory, old))
	require.Equal(t, "old is gone", <-told)
	cancel()
	<-ended
}

// watched has the lists of one store and the watches of another.
type watched struct {
	*lateLists
	watches *breaker
}

func (s *watched) Watch(ctx context.Context, kind schema.GroupVersionKind, namespace, version string) (<-chan store.Event, error) {
	return s.watches.Watch(ctx, kind, namespace, version)
}
