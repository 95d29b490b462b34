package snapshot

import (
	"testing"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/internal/crashstore"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// A snapshot that is to be kept, and that the plugin may have made, is made again for its handle. Until then its source must stay,
// which only the VolumeSnapshot sees to.
func TestARetainedSnapshotKeepsItsSourceUntilItIsOnRecord(t *testing.T) {
	inWorld(t, fake.PluginOptions{}, with(bound("c"), objectList{newClass("x", retains), newSnapshot("s", "c", "x")}), func(t *testing.T, w *world) {
		w.plugin.Inject(fake.MethodCreateSnapshot, fake.Fault{Times: 2, Effect: fake.EffectDone, Err: volume.Uncertain(crashstore.ErrCrashed)})
		w.start(w.store)
		idle()
		w.delete(newSnapshot("s", "", ""))
		w.delete(bound("c")[0])
		require.NotNil(t, w.snapshot("s").DeletionTimestamp)
		require.NotNil(t, w.claim("c").DeletionTimestamp, "the claim stays until the handle is on record")
		settle()
		isGone[*snapshotv1.VolumeSnapshot](w, "default", "s")
		isGone[*v1.PersistentVolumeClaim](w, "default", "c")
		content := w.content("snapcontent-uid-s")
		assert.Equal(t, "snapshot-uid-s", handleOf(content))
		assert.Nil(t, content.DeletionTimestamp)
		assert.NotContains(t, content.Annotations, AnnBeingCreated)
		assert.Equal(t, []string{"snapshot-uid-s"}, w.handles())
	})
}

func TestARetainedGroupKeepsItsSourcesUntilItIsOnRecord(t *testing.T) {
	objects := with(bound("a", labelled), bound("b", labelled), objectList{
		newGroupClass("x", func(c *groupv1.VolumeGroupSnapshotClass) { c.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain }), newGroup("g", "x"),
	})
	inWorld(t, fake.PluginOptions{}, objects, func(t *testing.T, w *world) {
		w.plugin.Inject(fake.MethodCreateGroupSnapshot, fake.Fault{Times: 2, Effect: fake.EffectDone, Err: volume.Uncertain(crashstore.ErrCrashed)})
		w.start(w.store)
		idle()
		w.delete(newGroup("g", ""))
		w.delete(bound("a")[0])
		require.NotNil(t, w.group("g").DeletionTimestamp)
		require.NotNil(t, w.claim("a").DeletionTimestamp, "the claim stays until the handle is on record")
		settle()
		isGone[*groupv1.VolumeGroupSnapshot](w, "default", "g")
		isGone[*v1.PersistentVolumeClaim](w, "default", "a")
		contents, _, err := store.ListOf[*groupv1.VolumeGroupSnapshotContent](t.Context(), w.store, "")
		require.NoError(t, err)
		require.Len(t, contents, 1)
		assert.NotEmpty(t, groupHandleOf(contents[0]))
		assert.Len(t, w.handles(), 2)
	})
}
