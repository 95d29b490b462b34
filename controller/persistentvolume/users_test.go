package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
)

// listing counts how often the pods of a namespace are listed, which takes it a while of the bubble's time, and fails some of the
// first lists.
type listing struct {
	store.Store

	lists, fails atomic.Int64
}

var errUnlisted = errors.New("the store cannot be reached")

func (s *listing) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	if kind == store.Pods && namespace != "" {
		s.lists.Add(1)
		time.Sleep(time.Millisecond)
		if s.fails.Add(-1) >= 0 {
			return store.List{}, errUnlisted
		}
	}
	return s.Store.List(ctx, kind, namespace)
}

// Many claims that go at once, and their volumes, cost a few lists of the pods; the one that a pod uses of which memory does
// not know stays, also when the store does not answer at first.
func TestManyClaimsThatGoShareTheListOfPods(t *testing.T) {
	const claims = 200
	var all objects
	for i := range claims {
		name := fmt.Sprintf("c-%d", i)
		all = append(all, newClaim(name), newVolume("v-"+name, refTo(name, ""), policy(v1.PersistentVolumeReclaimDelete)))
	}
	inWorld(t, append(all, newPod("p", "n", "c-77")), func(t *testing.T, w *world) {
		s := &listing{Store: blind{w.store}}
		w.start(s, Options{})
		idle()
		s.fails.Store(2)
		for i := range claims {
			require.NoError(t, store.Delete(t.Context(), w.store, w.claim(fmt.Sprintf("c-%d", i))))
		}
		sleepUntilIdle()
		left, _, err := store.ListOf[*v1.PersistentVolumeClaim](t.Context(), w.store, "")
		require.NoError(t, err)
		require.Len(t, left, 1)
		w.requireBound("c-77", "v-c-77")
		volumes, _, err := store.ListOf[*v1.PersistentVolume](t.Context(), w.store, "")
		require.NoError(t, err)
		assert.Len(t, volumes, 1)
		// Memory never hears of the pod here, so that its claim is looked at again and again.
		assert.Less(t, s.lists.Load(), int64(claims/2))
	})
}

// An answer is good for the very question, and for once.
func TestAnAnswerIsNeverOld(t *testing.T) {
	by, pods := item{claimItem, types.NamespacedName{Name: "c"}}, []*v1.Pod{newPod("p", "n", "c")}
	first, second := question{uid: "first", claim: by.name}, question{uid: "second", claim: by.name}
	u := newUsers()
	u.ask(by, first)
	assert.Equal(t, map[item]question{by: first}, u.begin(""))
	assert.Empty(t, u.begin(""), "what is asked from now on needs another list")
	u.answer(by, answer{first, pods})
	_, answered := u.take(by, second)
	assert.False(t, answered, "the claim was made again")
	_, answered = u.take(by, first)
	assert.False(t, answered, "it was thrown away")
	u.answer(by, answer{first, pods})
	got, answered := u.take(by, first)
	assert.True(t, answered)
	assert.Equal(t, pods, got)
	_, answered = u.take(by, first)
	assert.False(t, answered)
	u.answer(by, answer{first, pods})
	u.drop(by)
	_, answered = u.take(by, first)
	assert.False(t, answered)
}

// An answer that a claim had no need of, because something else had happened to it, is thrown away.
func TestAnAnswerThatIsNotNeededIsThrownAway(t *testing.T) {
	inWorld(t, objects{newClaim("c"), newVolume("a")}, func(t *testing.T, w *world) {
		c := w.settle()
		by := item{claimItem, store.NameOf(newClaim("c"))}
		asked := question{uid: "uid-c", claim: by.name}
		c.users.answer(by, answer{question: asked})
		c.work.queue.Add(by)
		idle()
		_, answered := c.users.take(by, asked)
		assert.False(t, answered)
	})
}
