package attachdetach

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// An attachment goes through its phases in their order, and each can be seen while it lasts.
func TestEveryPhaseOfAnAttachmentIsSeen(t *testing.T) {
	inWorld(t, []string{"node-1", "node-2"}, []string{"data"}, func(t *testing.T, w *world) {
		c, _ := w.start(w.store)
		phase := func(want AttachmentPhase, node types.NodeName) {
			t.Helper()
			for _, at := range c.Status() {
				if at.Node == node {
					assert.Equal(t, want, at.Phase)
					return
				}
			}
			t.Errorf("there is no attachment to %s: want %s", node, want)
		}
		goOn := make(chan struct{})
		w.plugin.Inject(fake.MethodAttach, fake.HangUntil(goOn))
		first := w.run("first", "node-1", "data")
		phase(PhaseAttaching, "node-1")
		next := w.run("next", "node-2", "data")
		phase(PhaseRequested, "node-2")
		close(goOn)
		idle()
		phase(PhaseAttached, "node-1")
		w.uses("node-1", "data")
		phase(PhaseInUse, "node-1")
		w.delete(first)
		phase(PhaseDetaching, "node-1")
		w.plugin.Inject(fake.MethodDetach, fake.FailN(1, volume.Uncertain(errors.New("no answer"))))
		w.uses("node-1")
		phase(PhaseUncertain, "node-1")
		phase(PhaseRequested, "node-2")
		time.Sleep(10 * time.Minute)
		idle()
		require.Len(t, c.Status(), 1, "the other one is gone")
		phase(PhaseAttached, "node-2")

		w.uses("node-2", "data")
		w.plugin.Inject(fake.MethodDetach, fake.FailN(1, errors.New("busy")))
		w.change("node-2", func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: v1.TaintNodeOutOfService}} })
		phase(PhaseInUse, "node-2")
		w.delete(next)
		phase(PhaseFenced, "node-2")
		time.Sleep(10 * time.Minute)
		idle()
		assert.Empty(t, c.Status())
		assert.Empty(t, w.nodesOf("data"))
	})
}

// deafNode is a store that takes no writes of one node's object so many times.
type deafNode struct {
	store.Store

	node string
	mu   sync.Mutex
	left int
}

func (s *deafNode) refuse(times int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = times
}

func (s *deafNode) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if node, is := obj.(*v1.Node); is && node.Name == s.node && s.left > 0 {
		s.left--
		return nil, errLost
	}
	return s.Store.Update(ctx, obj)
}

// A node that cannot be told holds up no other, and is told later; and what cannot be withdrawn is not detached.
func TestANodeThatCannotBeToldHoldsUpNoOther(t *testing.T) {
	inWorld(t, []string{"node-1", "node-2"}, []string{"a", "b"}, func(t *testing.T, w *world) {
		deaf := &deafNode{Store: w.store, node: "node-1", left: 3}
		w.start(deaf)
		pod := w.run("one", "node-1", "a")
		w.run("two", "node-2", "b")
		assert.Empty(t, w.told("node-1"))
		assert.Equal(t, []string{"b"}, w.told("node-2"))
		time.Sleep(time.Minute)
		idle()
		assert.Equal(t, []string{"a"}, w.told("node-1"))

		deaf.refuse(1 << 30)
		w.delete(pod)
		time.Sleep(time.Hour)
		idle()
		assert.Empty(t, w.calls(fake.MethodDetach), "the node has not been told")
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("a"))
		deaf.refuse(0)
		time.Sleep(time.Hour)
		idle()
		assert.Empty(t, w.nodesOf("a"))
	})
}
