package snapshot

import (
	"testing"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
)

// A content that was kept when its snapshot was deleted has the mark of that deletion. It says nothing of the next snapshot.
func TestAContentThatIsUsedAgainIsHeldByItsNewSnapshot(t *testing.T) {
	inWorld(t, fake.PluginOptions{}, bound("c"), func(t *testing.T, w *world) {
		handle := existing(t, w, "old")
		kept := newByHand("content", handle, "s")
		kept.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
		w.create(kept)
		w.create(snapshotOf("s", "content"))
		w.start(w.store)
		idle()
		w.requireReady("s")
		w.delete(newSnapshot("s", "", ""))
		isGone[*snapshotv1.VolumeSnapshot](w, "default", "s")
		require.Contains(t, w.content("content").Annotations, AnnBeingDeleted)

		change(w, kept, func(c *snapshotv1.VolumeSnapshotContent) {
			c.Spec.VolumeSnapshotRef = v1.ObjectReference{Namespace: "default", Name: "t"}
			c.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentDelete
		})
		w.create(snapshotOf("t", "content"))
		idle()
		w.requireReady("t")
		assert.NotContains(t, w.content("content").Annotations, AnnBeingDeleted)
		change(w, kept, func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations = map[string]string{AnnBeingDeleted: yes} })
		w.delete(kept)
		settle()
		assert.Equal(t, []string{handle}, w.handles(), "snapshot t is not being deleted")
		w.delete(newSnapshot("t", "", ""))
		isGone[*snapshotv1.VolumeSnapshotContent](w, "", "content")
		assert.Empty(t, w.handles())
	})
}

func TestAGroupsContentWithAnOldMarkIsHeldByItsGroup(t *testing.T) {
	inWorld(t, fake.PluginOptions{}, with(bound("a", labelled), objectList{newGroupClass("x"), newGroup("g", "x")}), func(t *testing.T, w *world) {
		w.start(w.store)
		idle()
		content := get[*groupv1.VolumeGroupSnapshotContent](w, "", "groupsnapcontent-uid-g")
		change(w, content, func(c *groupv1.VolumeGroupSnapshotContent) { c.Annotations[AnnGroupBeingDeleted] = yes })
		w.delete(content)
		settle()
		assert.Nil(t, get[*groupv1.VolumeGroupSnapshotContent](w, "", content.Name).Status.Error, "its deletion was begun, and the group is there")
	})
}
