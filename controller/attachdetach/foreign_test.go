package attachdetach

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// foreignAttachmentOf is a VolumeAttachment that another program made.
func foreignAttachmentOf(pv, node, attacher string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "csi-1234"},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: attacher, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
		},
	}
}

// An attachment that others made keeps an exclusive volume on its node, until its object is gone.
func TestAForeignAttachmentKeepsAnExclusiveVolumeOnItsNode(t *testing.T) {
	for name, attacher := range map[string]string{
		"of the same attacher": volume.DriverOfPluginName(fake.DefaultPluginName), "of another attacher": "other.example.com",
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, []string{"node-1", "node-2"}, []string{"early", "late"}, func(t *testing.T, w *world) {
				early, late := foreignAttachmentOf("early", "node-1", attacher), foreignAttachmentOf("late", "node-1", attacher)
				late.Name = "csi-5678"
				w.create(early)
				c, _ := w.start(w.store)
				w.create(late)
				idle()
				w.run("web", "node-2", "early", "late")
				time.Sleep(24 * time.Hour)
				assert.Empty(t, w.nodesOf("early"))
				assert.Empty(t, w.nodesOf("late"))
				assert.Len(t, w.records(), 2, "the two that others made")
				require.Len(t, w.messages(operationexecutor.ReasonFailedAttachVolume), 2, "it is said once")
				for i, object := range []*storagev1.VolumeAttachment{early, late} {
					var foreign *ForeignAttachmentError
					require.ErrorAs(t, c.Status()[i].Err, &foreign)
					assert.Equal(t, object.Name, foreign.Attachment)
					assert.Equal(t, types.NodeName("node-1"), foreign.NodeName)
				}
				w.delete(early)
				w.delete(late)
				assert.Equal(t, []types.NodeName{"node-2"}, w.nodesOf("early"))
				assert.Equal(t, []types.NodeName{"node-2"}, w.nodesOf("late"))
			})
		})
	}
}

// The volume counts, not the name of the PersistentVolume, and not when each of the objects came.
func TestAForeignAttachmentCountsUnderAnyNameOfItsVolume(t *testing.T) {
	inWorld(t, []string{"node-1", "node-2"}, []string{"data"}, func(t *testing.T, w *world) {
		w.start(w.store)
		w.create(foreignAttachmentOf("alias", "node-1", "other.example.com"))
		inline := foreignAttachmentOf("", "node-1", "other.example.com")
		pv, err := store.Get[*v1.PersistentVolume](t.Context(), w.store, "", "data")
		require.NoError(t, err)
		inline.Name, inline.Spec.Source = "csi-inline", storagev1.VolumeAttachmentSource{InlineVolumeSpec: &pv.Spec}
		idle()
		alias := pv.DeepCopy()
		alias.ObjectMeta, alias.Spec.ClaimRef = metav1.ObjectMeta{Name: "alias"}, nil
		w.create(alias)
		idle()
		w.create(inline)
		idle()
		w.run("web", "node-2", "data")
		w.delete(alias)
		time.Sleep(time.Hour)
		assert.Empty(t, w.nodesOf("data"), "what cannot be found out any more is not gone")
		w.delete(&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "csi-1234"}})
		assert.Empty(t, w.nodesOf("data"), "the other object is there")
		w.delete(inline)
		assert.Equal(t, []types.NodeName{"node-2"}, w.nodesOf("data"))
	})
}

// On the node that it names, a foreign attachment delays no attach, and nothing is detached beneath it. A volume that many nodes
// may have is held up nowhere.
func TestAForeignAttachmentLosesNothing(t *testing.T) {
	inWorld(t, []string{"node-1", "node-2"}, []string{"data"}, func(t *testing.T, w *world) {
		w.claim("shared", v1.ReadWriteMany)
		w.create(foreignAttachmentOf("data", "node-1", "other.example.com"))
		shared := foreignAttachmentOf("shared", "node-2", "other.example.com")
		shared.Name = "csi-shared"
		w.create(shared)
		c, _ := w.start(w.store)
		pod := w.run("web", "node-1", "data", "shared")
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"))
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("shared"))
		w.delete(pod)
		time.Sleep(time.Hour)
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"), "others have it there")
		assert.Empty(t, w.nodesOf("shared"))
		require.ErrorIs(t, c.Status()[0].Err, volume.ErrInUse)
		w.delete(foreignAttachmentOf("data", "node-1", "other.example.com"))
		assert.Empty(t, w.nodesOf("data"))
		assert.Empty(t, c.foreign.byVolume[nameOf("data")])
	})
}
