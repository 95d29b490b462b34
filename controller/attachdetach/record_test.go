package attachdetach

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// The store itself keeps an exclusive volume from a second node, also when two controllers run without an election.
func TestAnExclusiveVolumeHasOneRecord(t *testing.T) {
	inWorld(t, []string{"node-1", "node-2"}, []string{"data"}, func(t *testing.T, w *world) {
		c, _ := w.start(w.store)
		others := &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{
				Name: recordName(nameOf("data"), anyNode), Annotations: map[string]string{annUniqueVolumeName: string(nameOf("data"))},
			},
			Spec: storagev1.VolumeAttachmentSpec{Attacher: volume.DriverOfPluginName(fake.DefaultPluginName), NodeName: "node-1"},
		}
		w.create(others) // Another controller is about to attach it.
		w.run("web", "node-2", "data")
		time.Sleep(time.Hour)
		assert.Empty(t, w.calls(fake.MethodAttach))
		assert.Equal(t, []string{"data node-1"}, w.records())
		var elsewhere *operationexecutor.MultiAttachError
		require.ErrorAs(t, c.Status()[0].Err, &elsewhere)
		assert.Equal(t, []types.NodeName{"node-1"}, elsewhere.Nodes)
		w.delete(others)
		time.Sleep(time.Hour)
		assert.Equal(t, []types.NodeName{"node-2"}, w.nodesOf("data"))
		assert.Equal(t, []string{"data node-2"}, w.records())
	})
}

// A deletion that comes late takes nothing from the node that has the name of the record by then.
func TestARecordIsForgottenOnlyByItsOwnNode(t *testing.T) {
	for name, answer := range map[string]error{"the record was made": nil, "it is unknown whether the record was made": errors.New("no answer")} {
		t.Run(name, func(t *testing.T) {
			s := store.NewMemory(store.MemoryOptions{})
			unknown := func(types.NodeName) (types.UID, bool) { return "", false }
			late, next := newAttachmentRecords(s, unknown), newAttachmentRecords(s, unknown)
			spec := volume.NewSpecFromPersistentVolume(newExclusive("data"), false)
			intent := operationexecutor.Intent{
				Kind: operationexecutor.OpAttach, VolumeName: nameOf("data"), PluginName: fake.DefaultPluginName, Spec: spec, NodeName: "node-1",
			}
			first, err := late.object(t.Context(), intent)
			require.NoError(t, err)
			a := attachment{nameOf("data"), "node-1"}
			if answer != nil {
				late.remember(a, recordRef{name: first.Name})
			}
			require.NoError(t, store.Delete(t.Context(), s, first))
			intent.NodeName = "node-2"
			second, err := next.object(t.Context(), intent)
			require.NoError(t, err)
			require.Equal(t, first.Name, second.Name)
			if err := late.forget(t.Context(), a); err != nil {
				require.NoError(t, late.forget(t.Context(), a), "what the object is now is read")
			}
			_, err = store.Get[*storagev1.VolumeAttachment](t.Context(), s, "", second.Name)
			require.NoError(t, err)
			assert.Empty(t, late.names)
		})
	}
}
