package snapshot

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/fake"
)

// The back-off of the controller of claims plays no part: it is an hour.
func TestAClaimIsRestoredAsSoonAsItsSnapshotIsReady(t *testing.T) {
	waiting := restoring("r", "s")
	waiting.Spec.StorageClassName = new("fast")
	inWorld(t, fake.PluginOptions{UnreadySnapshots: true}, with(bound("c"), objectList{
		newClass("x"), newSnapshot("s", "c", "x"), waiting,
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: driver},
	}), func(t *testing.T, w *world) {
		c, _ := w.start(w.store)
		claims := persistentvolume.New(w.plugins, w.store, persistentvolume.Options{
			Snapshots: c, InitialBackoff: time.Hour, MaxBackoff: time.Hour, Jitter: -1,
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- claims.Run(ctx) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, v1.ClaimPending, w.claim("r").Status.Phase)
		require.NoError(t, w.plugin.Backend().MakeSnapshotReady("snapshot-uid-s"))
		time.Sleep(5 * time.Minute) // The snapshot controller asks the plugin again after two minutes at the latest.
		synctest.Wait()
		w.requireReady("s")
		require.Equal(t, v1.ClaimBound, w.claim("r").Status.Phase)
		cancel()
		require.NoError(t, <-ended)
	})
}
