package inuse

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/store"
)

// slowLists is a store whose lists wait until they may go on.
type slowLists struct {
	store.Store

	goOn chan struct{}
	mu   sync.Mutex
	n    int
}

func (s *slowLists) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	s.mu.Lock()
	s.n++
	s.mu.Unlock()
	list, err := s.Store.List(ctx, kind, namespace)
	<-s.goOn
	return list, err
}

// Who asks while a list is under way gets the next one, which has what was written before, and shares it.
func TestAListThatWasBegunBeforeIsNotBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowLists{Store: store.NewMemory(store.MemoryOptions{}), goOn: make(chan struct{})}
		l := newLists[*v1.Pod](s)
		found := make([]int, 11)
		var askers sync.WaitGroup
		ask := func(i int) {
			askers.Go(func() {
				pods, err := l.all(t.Context(), "default")
				assert.NoError(t, err)
				found[i] = len(pods)
			})
		}
		ask(0)
		synctest.Wait()
		_, err := s.Create(t.Context(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "late"}})
		require.NoError(t, err)
		for i := 1; i < len(found); i++ {
			ask(i)
		}
		synctest.Wait()
		close(s.goOn)
		askers.Wait()
		assert.Equal(t, []int{0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, found)
		assert.Equal(t, 2, s.n)
		assert.Empty(t, l.last)
	})
}

// A list whose callers have all given up fails for the callers that share it, and is not kept.
func TestAListEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowLists{Store: store.NewMemory(store.MemoryOptions{}), goOn: make(chan struct{})}
		l := newLists[*v1.Pod](s)
		ctx, cancel := context.WithCancel(t.Context())
		first, shared := make(chan error, 1), make(chan error, 2)
		go func() { _, err := l.all(t.Context(), ""); first <- err }()
		synctest.Wait()
		for range 2 {
			go func() { _, err := l.all(ctx, ""); shared <- err }()
			synctest.Wait()
		}
		cancel()
		require.ErrorIs(t, <-shared, context.Canceled)
		close(s.goOn)
		require.NoError(t, <-first)
		require.ErrorIs(t, <-shared, context.Canceled)
		synctest.Wait()
		assert.Empty(t, l.last)
	})
}
