package attachdetach

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// A Node object that is deleted ends neither its machine nor its pods.
func TestADeletedNodeObjectTakesNothingFromItsPods(t *testing.T) {
	for name, restart := range map[string]bool{"the controller runs on": false, "another controller starts": true} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, []string{"node-1", "node-2"}, []string{"data"}, func(t *testing.T, w *world) {
				c, stop := w.start(w.store)
				w.run("old", "node-1", "data")
				w.uses("node-1", "data")
				w.delete(newNode("node-1"))
				if restart {
					stop()
					c, _ = w.start(w.store)
				}
				w.run("new", "node-2", "data")
				time.Sleep(24 * time.Hour)
				assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"))
				assert.Empty(t, w.calls(fake.MethodDetach))
				assert.Empty(t, c.ForcedDetaches())
				require.Len(t, c.Status(), 2)
				assert.True(t, c.Status()[0].Wanted, "the pod's object is there")

				w.create(newNode("node-1"))
				idle()
				assert.Equal(t, []string{"data"}, w.told("node-1"), "the node gets it back")
				assert.Empty(t, w.calls(fake.MethodDetach))
			})
		})
	}
}

// Without a node's object it is unknown whether the node still writes. The volume stays, and an event says what a person can do.
func TestAVolumeOfANodeWithoutAnObjectStays(t *testing.T) {
	inWorld(t, []string{"node-1", "node-2"}, []string{"data", "free"}, func(t *testing.T, w *world) {
		c, _ := w.start(w.store)
		pod := w.run("web", "node-1", "data", "free")
		w.uses("node-1", "data")
		w.delete(newNode("node-1"))
		w.delete(pod)
		w.run("new", "node-2", "data")
		time.Sleep(24 * time.Hour)
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"))
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("free"), "its last word may be older than what it does")
		for _, at := range c.Status()[:2] {
			require.ErrorIs(t, at.Err, ErrNodeMissing)
			require.ErrorIs(t, at.Err, volume.ErrInUse)
		}
		require.Len(t, w.messages(reasonNodeMissing), 2, "it is said once of each volume")
		assert.Contains(t, w.messages(reasonNodeMissing)[0], v1.TaintNodeOutOfService)

		back := newNode("node-1")
		back.Spec.Taints = []v1.Taint{{Key: v1.TaintNodeOutOfService}}
		w.create(back)
		idle()
		assert.Equal(t, []types.NodeName{"node-2"}, w.nodesOf("data"), "an operator said that nothing on it can write")
		assert.Empty(t, w.nodesOf("free"))
		assert.Equal(t, map[ForceReason]uint64{ForcedByFence: 2}, c.ForcedDetaches())
	})
}

// Making a node's object again does not say what the machine uses.
func TestANodeThatComesBackUnderAnotherUIDIsAskedAnew(t *testing.T) {
	for name, restart := range map[string]bool{"the controller runs on": false, "another controller starts": true} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
				_, stop := w.start(w.store)
				pod := w.run("web", "node-1", "data")
				w.uses("node-1", "data")
				if restart {
					stop()
				}
				w.delete(newNode("node-1"))
				w.delete(pod)
				w.create(newNode("node-1"))
				if restart {
					w.start(w.store)
				}
				time.Sleep(24 * time.Hour)
				assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"), "the list of volumes in use of a new object is empty by itself")
				w.uses("node-1", "data")
				w.uses("node-1")
				assert.Empty(t, w.nodesOf("data"), "the node has said that it used it, and that it no longer does")
			})
		})
	}
}

// A node that has just fallen sick has its time, however long no pod has needed the volume there.
func TestForceNeedsANodeThatWasSickTheWholeTime(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		c, _ := w.start(w.store)
		pod := w.run("web", "node-1", "data")
		w.uses("node-1", "data")
		w.delete(pod)
		time.Sleep(time.Hour)
		w.sicken("node-1")
		time.Sleep(defaultMaxWaitForUnmount - time.Second)
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"))
		w.change("node-1", func(n *v1.Node) { n.Status.Conditions[0].LastTransitionTime = metav1.Now() })
		time.Sleep(defaultMaxWaitForUnmount - time.Second)
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"), "it was ready in between, which this process has not seen")
		time.Sleep(2 * time.Second)
		assert.Empty(t, w.nodesOf("data"))
		assert.Equal(t, map[ForceReason]uint64{ForcedByTimeout: 1}, c.ForcedDetaches())
	})
}

// A node need not say whether it is ready.
func TestANodeThatDoesNotSayHowItIsLosesNothing(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		w.change("node-1", func(n *v1.Node) { n.Status.Conditions = nil })
		w.start(w.store)
		pod := w.run("web", "node-1", "data")
		w.uses("node-1", "data")
		w.delete(pod)
		time.Sleep(24 * time.Hour)
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"))
		w.uses("node-1")
		assert.Empty(t, w.nodesOf("data"), "it has let go")
	})
}

// The object goes between the decision to force and the call.
func TestANodeObjectThatGoesBeforeTheForceStopsIt(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		w.sicken("node-1")
		c, _ := w.start(&lagging{Store: w.store, kind: store.Nodes, by: time.Hour})
		pod := w.run("web", "node-1", "data")
		w.uses("node-1", "data")
		w.delete(newNode("node-1"))
		w.delete(pod)
		time.Sleep(defaultMaxWaitForUnmount + 10*time.Minute)
		idle()
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"))
		assert.Empty(t, c.ForcedDetaches())
	})
}

// A node that uses nothing says so with its UID: then its empty list counts.
func TestAnEmptyListThatTheNodeSignedCounts(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		w.start(w.store)
		pod := w.run("web", "node-1", "data")
		w.uses("node-1", "data")
		old := w.node("node-1").UID
		w.delete(newNode("node-1"))
		w.delete(pod)
		w.create(newNode("node-1"))
		idle()
		w.change("node-1", func(n *v1.Node) { n.Annotations = map[string]string{store.AnnVolumesInUseOf: string(old)} })
		time.Sleep(time.Hour)
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"), "it is the word of another object")
		w.change("node-1", func(n *v1.Node) { n.Annotations[store.AnnVolumesInUseOf] = string(n.UID) })
		assert.Empty(t, w.nodesOf("data"))
	})
}

// Another program replaces the whole status: what the node uses stays in use until the node has said what it is. Neither a
// controller that has seen the list before nor one that starts then believes it.
func TestAListThatAnotherProgramHasEmptiedDoesNotCount(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		_, stop := w.start(w.store)
		pod := w.run("web", "node-1", "data")
		w.uses("node-1", "data")
		w.change("node-1", func(n *v1.Node) { n.Annotations = map[string]string{store.AnnVolumesInUseOf: ""} })
		w.uses("node-1")
		w.delete(pod)
		time.Sleep(time.Hour)
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"))
		stop()
		w.start(w.store)
		time.Sleep(time.Hour)
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"))
		assert.Equal(t, []string{"data"}, w.told("node-1"), "nothing is withdrawn from a node of whose use nothing is known")
		w.uses("node-1", "data")
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"), "the node has said it again")
		w.uses("node-1")
		w.change("node-1", func(n *v1.Node) { n.Annotations[store.AnnVolumesInUseOf] = string(n.UID) })
		assert.Empty(t, w.nodesOf("data"))
	})
}

// The object is made anew between the last word that was seen of the node and the detach.
func TestANewObjectIsNotTheWordOfTheOld(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		w.start(&lagging{Store: w.store, kind: store.Nodes, by: time.Hour})
		pod := w.run("web", "node-1", "data")
		w.delete(newNode("node-1"))
		w.create(newNode("node-1"))
		w.delete(pod)
		time.Sleep(30 * time.Minute)
		assert.Empty(t, w.calls(fake.MethodDetach))
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"))
	})
}
