package attachdetach

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

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
