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

	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/store"
)

// listing counts how often the pods of a namespace, and all volumes, are listed, which takes it a while of the bubble's time, and fails
// some of the first lists of pods.
type listing struct {
	store.Store

	lists, fails, volumes atomic.Int64
}

var errUnlisted = errors.New("the store cannot be reached")

func (s *listing) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	if kind == store.PersistentVolumes {
		s.volumes.Add(1)
		time.Sleep(time.Millisecond)
	}
	if kind == store.Pods && namespace != "" {
		s.lists.Add(1)
		time.Sleep(time.Millisecond)
		if s.fails.Add(-1) >= 0 {
			return store.List{}, errUnlisted
		}
	}
	return s.Store.List(ctx, kind, namespace)
}

// Many claims that go at once, and their volumes, cost a few lists of the pods and of the volumes; the one that a pod uses of which memory does
// not know stays, also when the store does not answer at first.
func TestManyClaimsThatGoShareTheListOfPods(t *testing.T) {
	const claims = 200
	var all objectList
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
		assert.Less(t, s.volumes.Load(), int64(claims/10))
	})
}

// An answer that a claim had no need of, because something else had happened to it, is thrown away.
func TestAnAnswerThatIsNotNeededIsThrownAway(t *testing.T) {
	inWorld(t, objectList{newClaim("c"), newVolume("a")}, func(t *testing.T, w *world) {
		c := w.settle()
		_, err := c.users.Claim(t.Context(), w.claim("c"))
		require.ErrorIs(t, err, work.ErrAwaited)
		idle() // The pods are read, and the claim is looked at, which is not being deleted.
		_, err = c.users.Claim(t.Context(), w.claim("c"))
		require.ErrorIs(t, err, work.ErrAwaited)
	})
}
