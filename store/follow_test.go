package store_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/store"
)

// heard keeps what a follower was told, as text.
type heard struct{ what []string }

func (h *heard) Listed(nodes []*v1.Node) { h.what = append(h.what, fmt.Sprint("listed ", len(nodes))) }

func (h *heard) Changed(event store.EventType, node *v1.Node) {
	h.what = append(h.what, fmt.Sprint(event, " ", node.Name))
}

// briefStore ends each watch at once, after the events that it is given.
type briefStore struct {
	store.Store
	events []store.Event
}

func (s briefStore) Watch(context.Context, schema.GroupVersionKind, string, string) (<-chan store.Event, error) {
	events := make(chan store.Event, len(s.events))
	for _, event := range s.events {
		events <- event
	}
	close(events)
	return events, nil
}

func TestAFollowerIsToldOfTheListAndOfEachChangeAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := store.NewMemory(store.MemoryOptions{})
		create := func(name string) {
			_, err := s.Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
			require.NoError(t, err)
		}
		create("a")
		h := &heard{}
		go store.Follow(ctx, s, h, store.MirrorOptions{})
		synctest.Wait()
		create("b")
		synctest.Wait()
		assert.Equal(t, []string{"listed 1", "Added b"}, h.what)
	})
}

// TestAWatchThatEndsSoonIsBegunAgainAfterAPause: after the first wait each time that an event came, and else after longer ones.
func TestAWatchThatEndsSoonIsBegunAgainAfterAPause(t *testing.T) {
	node := store.Event{Type: store.Added, Object: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}
	for lists, events := range map[int][]store.Event{60: {node}, 6: nil} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute-time.Millisecond)
			defer cancel()
			h := &heard{}
			s := briefStore{Store: store.NewMemory(store.MemoryOptions{}), events: events}
			store.Follow(ctx, s, h, store.MirrorOptions{InitialBackoff: time.Second, Jitter: -1})
			assert.Len(t, h.what, lists*(1+len(events)))
		})
	}
}
