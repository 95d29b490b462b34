package attachdetach

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/internal/crashstore"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
)

func TestAControllerThatStartsAgainKnowsWhatIsThere(t *testing.T) {
	inWorld(t, []string{"node-1", "node-2"}, []string{"kept", "gone"}, func(t *testing.T, w *world) {
		_, stop := w.start(w.store)
		w.run("web", "node-1", "kept")
		gone := w.run("job", "node-1", "gone")
		w.uses("node-1", "kept")
		stop()
		w.delete(gone)
		w.run("rival", "node-2", "kept")
		w.newPlugin() // It remembers nothing.
		w.start(w.store)
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("kept"), "it may be attached there, so no other node gets it")
		assert.Empty(t, w.calls(fake.MethodAttach), "what is there is not attached again")
		assert.Equal(t, []string{"kept"}, w.told("node-1"))
		assert.Empty(t, w.nodesOf("gone"))
		assert.Len(t, w.messages(operationexecutor.ReasonSuccessfulDetachVolume), 1, "the volume that no pod needs is known too, and has an event")
		assert.Equal(t, []string{"kept node-1"}, w.records())
	})
}

// A controller is killed after each write to the store; the next one ends where one that was not killed ends, and at no time
// do two nodes have the volume.
func TestKilledAfterAnyWriteTheNextControllerEndsRight(t *testing.T) {
	writes := 1
	for ; killedAfter(t, writes); writes++ {
	}
	// A record, what became of it, two words to the node, the end of the record; a write that loses against another counts, too.
	assert.GreaterOrEqual(t, writes, 5)
	t.Logf("killed after each of %d writes", writes-1)
}

// killedAfter reports whether there was such a write.
func killedAfter(t *testing.T, writes int) (killed bool) {
	t.Helper()
	inWorld(t, []string{"node-1", "node-2"}, []string{"data"}, func(t *testing.T, w *world) {
		dying := crashstore.New(w.store, crashstore.Crash{After: writes})
		_, stop := w.start(dying)
		pod := w.run("old", "node-1", "data")
		w.delete(pod)
		time.Sleep(time.Second)
		stop()
		killed = dying.IsCrashed()
		w.newPlugin()
		w.start(w.store)
		w.run("new", "node-2", "data")
		time.Sleep(time.Minute)
		require.Equal(t, []types.NodeName{"node-2"}, w.nodesOf("data"), "killed after write %d", writes)
		require.Equal(t, []string{"data node-2"}, w.records())
		require.Empty(t, w.told("node-1"))
		require.Equal(t, []string{"data"}, w.told("node-2"))
		require.Equal(t, []string{"data node-2"}, w.calls(fake.MethodAttach), "the new one has attached to no other node")
	})
	return killed
}

func TestRecordsOfOthersAreLeftAlone(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		name := "data"
		foreign := &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: "csi-1234"},
			Spec: storagev1.VolumeAttachmentSpec{
				Attacher: "other.example.com", NodeName: "node-1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name},
			},
		}
		w.create(foreign)
		posing := foreign.DeepCopy()
		posing.Name, posing.Annotations = "volumekit-0000", map[string]string{annUniqueVolumeName: string(nameOf("data"))}
		w.create(posing)
		c, _ := w.start(w.store)
		assert.Empty(t, c.Status())
		objects, _, err := store.ListOf[*storagev1.VolumeAttachment](t.Context(), w.store, "")
		require.NoError(t, err)
		assert.Len(t, objects, 2)
		assert.Empty(t, w.calls(fake.MethodDetach))
	})
}

// Of several who write a node's status at once, the last word is the newest.
func TestANodeIsToldTheNewestWord(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"a", "b", "c", "d"}, func(t *testing.T, w *world) {
		w.start(w.store)
		for range 5 {
			x, y := newPod("x", "node-1", "a", "b"), newPod("y", "node-1", "c", "d")
			w.create(x)
			w.create(y)
			idle()
			assert.Equal(t, []string{"a", "b", "c", "d"}, w.told("node-1"))
			require.NoError(t, store.Delete(t.Context(), w.store, x))
			w.delete(y)
			assert.Empty(t, w.told("node-1"))
		}
	})
}
