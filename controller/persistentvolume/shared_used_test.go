package persistentvolume

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
)

// Two volumes of one storage go together. What still uses one of them keeps the storage.
func TestStorageIsKeptWhileAVolumeThatGoesTooIsUsed(t *testing.T) {
	deletes := policy(v1.PersistentVolumeReclaimDelete)
	for name, user := range map[string]store.Object{"a pod": newPod("p", "n", "d"), "an attachment": attachmentOf("b")} {
		t.Run(name, func(t *testing.T) {
			objects := objectList{
				newVolume("a", refTo("c", "uid-c"), deletes), newVolume("b", sameStorage("a"), refTo("d", "uid-d"), deletes), user,
			}
			inWorld(t, objects, func(t *testing.T, w *world) {
				require.NoError(t, w.plugin.Backend().Create("a", 1<<30))
				w.settle()
				sleepUntilIdle()
				assert.Zero(t, w.calls(fake.MethodDelete))
				assert.Contains(t, w.volume("a").Status.Message, `volume "b"`)
				w.delete(user)
				sleepUntilIdle()
				w.requireNoVolume("a")
				w.requireNoVolume("b")
				assert.Empty(t, w.plugin.Backend().Handles())
			})
		})
	}
}

// mountsOf reports that one volume is mounted.
type mountsOf string

func (m mountsOf) WaitForVolumeUnused(ctx context.Context, pv *v1.PersistentVolume) error {
	if pv.Name != string(m) {
		return nil
	}
	<-ctx.Done()
	return usedByPodOf("p")
}

// A directory is kept while a volume in it is mounted, though the claims of both are gone.
func TestADirectoryIsKeptWhileAVolumeInItIsMounted(t *testing.T) {
	deletes := policy(v1.PersistentVolumeReclaimDelete)
	objects := objectList{newVolume("a", at("/base/a"), refTo("c", "uid-c"), deletes), newVolume("below", at("/base/a/x"), refTo("d", "uid-d"), deletes)}
	inWorld(t, objects, func(t *testing.T, w *world) {
		w.start(w.store, Options{Mounts: mountsOf("below")})
		sleepUntilIdle()
		assert.Contains(t, w.volume("a").Status.Message, `pod "default/p" has it mounted`)
		assert.Equal(t, v1.VolumeReleased, w.volume("a").Status.Phase)
	})
}
