package snapshot

import (
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/fake"
)

func TestASnapshotOfAClaimIsMade(t *testing.T) {
	inWorld(t, fake.PluginOptions{}, append(bound("c"), newClass("x", isDefault)), func(t *testing.T, w *world) {
		w.start(w.store)
		w.create(newSnapshot("s", "c", ""))
		idle()
		content := w.requireReady("s")
		assert.Equal(t, []string{"snapshot-uid-s"}, w.handles())
		assert.Equal(t, "snapcontent-uid-s", content.Name)
		assert.Equal(t, "x", *w.snapshot("s").Spec.VolumeSnapshotClassName)
		assert.NotContains(t, w.claim("c").Finalizers, FinalizerSourceClaim)
		assert.Equal(t, int64(1<<30), w.snapshot("s").Status.RestoreSize.Value())
		assert.NotNil(t, w.snapshot("s").Status.CreationTime)
		assert.Equal(t, []string{"CreatingSnapshot", "SnapshotCreated", "SnapshotReady"}, w.reasons())
		require.Equal(t, 1, w.calls(fake.MethodCreateSnapshot))

		w.delete(newSnapshot("s", "c", ""))
		isGone[*snapshotv1.VolumeSnapshot](w, "default", "s")
		isGone[*snapshotv1.VolumeSnapshotContent](w, "", content.Name)
		assert.Empty(t, w.handles())
	})
}
