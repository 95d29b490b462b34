package persistentvolume

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/store"
)

// gap is a store whose watches of one kind tell nothing until they are ended. What comes and goes meanwhile is in no event and in no
// list.
type gap struct {
	store.Store

	kind schema.GroupVersionKind
	mu   sync.Mutex
	end  chan struct{}
}

func (s *gap) Watch(ctx context.Context, kind schema.GroupVersionKind, namespace, version string) (<-chan store.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if kind != s.kind || s.end != nil {
		return s.Store.Watch(ctx, kind, namespace, version)
	}
	s.end = make(chan struct{})
	silent := make(chan store.Event)
	go func() {
		defer close(silent)
		select {
		case <-s.end:
		case <-ctx.Done():
		}
	}()
	return silent, nil
}

// close ends the first watch, so that the kind is listed and watched again.
func (s *gap) close() {
	s.mu.Lock()
	close(s.end)
	s.mu.Unlock()
	time.Sleep(time.Minute)
	idle()
}

// What an item waits for may have been read from the store alone, and be gone before the kind is listed again: then no event tells
// of it. The item is looked at again all the same.
func TestWhatCameAndWentBetweenTwoListsIsNotWaitedFor(t *testing.T) {
	deletes := policy(v1.PersistentVolumeReclaimDelete)
	t.Run("an attachment", func(t *testing.T) {
		inWorld(t, objectList{newVolume("a", refTo("c", "uid-c"), deletes)}, func(t *testing.T, w *world) {
			at := attachmentOf("a")
			s := &gap{Store: w.store, kind: store.VolumeAttachments}
			w.create(newPod("p", "n", "c"))
			w.start(s, Options{})
			idle()
			w.create(at)
			w.delete(newPod("p", "n", "c"))
			assert.Contains(t, w.volume("a").Status.Message, "attached")
			w.delete(at)
			s.close()
			w.requireNoVolume("a")
		})
	})
	t.Run("a pod, for its claim", func(t *testing.T) {
		inWorld(t, objectList{newClaim("c"), newVolume("a", deletes)}, func(t *testing.T, w *world) {
			s := &gap{Store: w.store, kind: store.Pods}
			w.start(s, Options{})
			idle()
			w.create(newPod("p", "n", "c"))
			w.delete(newClaim("c"))
			require.True(t, w.has(newClaim("c")))
			w.delete(newPod("p", "n", "c"))
			s.close()
			assert.False(t, w.has(newClaim("c")))
			w.requireNoVolume("a")
		})
	})
	t.Run("a pod, for a volume", func(t *testing.T) {
		inWorld(t, objectList{newVolume("a", refTo("c", "uid-c"), deletes), attachmentOf("a")}, func(t *testing.T, w *world) {
			s := &gap{Store: w.store, kind: store.Pods}
			w.start(s, Options{})
			idle()
			w.create(newPod("p", "n", "c"))
			w.delete(attachmentOf("a"))
			assert.Contains(t, w.volume("a").Status.Message, `pod "default/p"`)
			w.delete(newPod("p", "n", "c"))
			s.close()
			w.requireNoVolume("a")
		})
	})
	t.Run("a claim", func(t *testing.T) {
		inWorld(t, nil, func(t *testing.T, w *world) {
			s := &gap{Store: w.store, kind: store.PersistentVolumeClaims}
			w.start(s, Options{})
			idle()
			w.create(newClaim("c", names("a"), completed))
			w.create(newVolume("a", refTo("c", w.claim("c").UID), deletes))
			idle()
			assert.Equal(t, v1.VolumeBound, w.volume("a").Status.Phase)
			w.delete(newClaim("c"))
			require.False(t, w.has(newClaim("c")))
			s.close()
			w.requireNoVolume("a")
		})
	})
	t.Run("a volume", func(t *testing.T) {
		inWorld(t, nil, func(t *testing.T, w *world) {
			s := &gap{Store: w.store, kind: store.PersistentVolumes}
			w.start(s, Options{})
			idle()
			pv := newVolume("a", refTo("c", "uid-c"))
			w.create(pv)
			w.create(newClaim("c", names("a"), completed))
			idle()
			require.Equal(t, v1.ClaimBound, w.claim("c").Status.Phase)
			now := w.volume("a")
			now.Finalizers = nil
			_, err := store.Update(t.Context(), w.store, now)
			require.NoError(t, err)
			w.delete(pv)
			s.close()
			assert.Equal(t, v1.ClaimLost, w.claim("c").Status.Phase)
		})
	})
}

// A claim that waits for the labels of its node is bound when they fit, though nodes are not followed.
func TestAClaimIsBoundWhenTheLabelsOfItsNodeFit(t *testing.T) {
	inZone := func(pv *v1.PersistentVolume) {
		pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: "zone", Operator: v1.NodeSelectorOpIn, Values: []string{"b"}}},
		}}}}
	}
	for name, claim := range map[string]*v1.PersistentVolumeClaim{"a free one": newClaim("c"), "the one that it names": newClaim("c", names("a"))} {
		t.Run(name, func(t *testing.T) {
			node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": "a"}}}
			inWorld(t, objectList{claim, newVolume("a", inZone), node}, func(t *testing.T, w *world) {
				w.start(w.store, Options{NodeName: "n"})
				sleepUntilIdle()
				require.Equal(t, v1.ClaimPending, w.claim("c").Status.Phase)
				now, err := store.Get[*v1.Node](t.Context(), w.store, "", "n")
				require.NoError(t, err)
				now.Labels["zone"] = "b"
				_, err = store.Update(t.Context(), w.store, now)
				require.NoError(t, err)
				sleepUntilIdle()
				w.requireBound("c", "a")
			})
		})
	}
}
