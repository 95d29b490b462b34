package attachdetach

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
)

// Pods of users' stores may share a UID. The end of one takes no volume from another.
func TestPodsOfOneUIDKeepTheirVolumes(t *testing.T) {
	for name, end := range map[string]func(w *world, pod *v1.Pod){
		"deleted": func(w *world, pod *v1.Pod) { w.delete(pod) },
		"ended": func(w *world, pod *v1.Pod) {
			now, err := store.Get[*v1.Pod](w.t.Context(), w.store, pod.Namespace, pod.Name)
			require.NoError(w.t, err)
			now.Status.Phase = v1.PodSucceeded
			_, err = store.Update(w.t.Context(), w.store, now)
			require.NoError(w.t, err)
			idle()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, []string{"n1", "n2"}, []string{"c1", "c2", "c3"}, func(t *testing.T, w *world) {
				w.start(w.store)
				var pods []*v1.Pod
				for _, pod := range []*v1.Pod{newPod("x", "n1", "c1", "c3"), newPod("y", "n2", "c2"), newPod("z", "n1", "c3")} {
					pod.UID = "one"
					w.create(pod)
					pods = append(pods, pod)
				}
				idle()
				for claim, node := range map[string]types.NodeName{"c1": "n1", "c2": "n2", "c3": "n1"} {
					require.Equal(t, []types.NodeName{node}, w.nodesOf(claim))
				}
				end(w, pods[0])
				time.Sleep(time.Hour)
				assert.Empty(t, w.nodesOf("c1"))
				assert.Equal(t, []types.NodeName{"n2"}, w.nodesOf("c2"))
				assert.Equal(t, []types.NodeName{"n1"}, w.nodesOf("c3"))
				assert.Equal(t, []string{"c1 n1"}, w.calls(fake.MethodDetach))
				end(w, pods[1])
				end(w, pods[2])
				idle()
				assert.Empty(t, w.nodesOf("c2"))
				assert.Empty(t, w.nodesOf("c3"))
			})
		})
	}
}
