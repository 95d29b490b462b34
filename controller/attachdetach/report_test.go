package attachdetach

import (
	"context"
	"errors"
	"fmt"
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
)

// slowNodes takes a second of the bubble's time for each write of a node.
type slowNodes struct{ store.Store }

func (s slowNodes) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	if _, isNode := obj.(*v1.Node); isNode {
		time.Sleep(time.Second)
	}
	return s.Store.Update(ctx, obj)
}

// A store that takes its time for one node does not keep the others waiting.
func TestNodesAreToldAtTheSameTime(t *testing.T) {
	var nodes, claims []string
	for i := range reporters {
		nodes, claims = append(nodes, fmt.Sprintf("node-%d", i)), append(claims, fmt.Sprintf("claim-%d", i))
	}
	inWorld(t, nodes, claims, func(t *testing.T, w *world) {
		for i, node := range nodes {
			w.create(newPod("pod-"+node, node, claims[i]))
		}
		w.start(slowNodes{w.store})
		time.Sleep(time.Second)
		idle()
		for i, node := range nodes {
			attached := w.node(node).Status.VolumesAttached
			if assert.Len(t, attached, 1, node) {
				assert.Equal(t, nameOf(claims[i]), attached[0].Name)
			}
		}
	})
}

// holding holds each write of a node whose list of attached volumes is that of holds, until release is closed.
type holding struct {
	store.Store

	holds   func(attached []v1.AttachedVolume) bool
	release chan struct{}
}

func (s holding) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	if node, isNode := obj.(*v1.Node); isNode && s.holds(node.Status.VolumesAttached) {
		<-s.release
	}
	return s.Store.Update(ctx, obj)
}

// An older report is on its way when a newer one finds that the node's status says already what it is to say.
func TestAnOlderReportDoesNotUndoANewerOne(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		w.options.VerifyPeriod = 0
		s := holding{w.store, func(attached []v1.AttachedVolume) bool { return len(attached) == 0 }, make(chan struct{})}
		w.start(s)
		w.run("web", "node-1", "data")
		detacher, err := w.plugin.NewDetacher()
		require.NoError(t, err)
		require.NoError(t, detacher.Detach(t.Context(), "data", "node-1")) // The storage has lost it.
		time.Sleep(defaultVerifyPeriod + time.Second)
		require.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"), "it is attached again, while the node is told that it is not")
		close(s.release)
		idle()
		assert.Equal(t, []string{"data"}, w.told("node-1"))
	})
}

// late is a store that answers the writes of nodes with attached volumes with an error, and carries the first one out later.
type late struct {
	store.Store

	mu    sync.Mutex
	first runtime.Object
}

var errNoAnswer = errors.New("no answer")

func (s *late) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	if node, isNode := obj.(*v1.Node); !isNode || len(node.Status.VolumesAttached) == 0 {
		return s.Store.Update(ctx, obj)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first == nil {
		s.first = obj.DeepCopyObject()
	}
	return nil, errNoAnswer
}

// A write whose end is not known takes effect after the volume was withdrawn: the node would begin to use what is being detached.
func TestAWriteThatComesLateTellsTheNodeNothing(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		s := &late{Store: w.store}
		w.start(s)
		pod := w.run("web", "node-1", "data")
		require.Empty(t, w.told("node-1"))
		w.delete(pod)
		time.Sleep(time.Minute)
		require.NotEmpty(t, w.calls(fake.MethodDetach))
		_, err := w.store.Update(t.Context(), s.first)
		require.ErrorIs(t, err, store.ErrConflict)
		assert.Empty(t, w.told("node-1"))
	})
}
