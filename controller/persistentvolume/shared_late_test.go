package persistentvolume

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
)

// beforeNodes calls do once, before the nodes are listed: that is after the volumes were, in each sync of a volume that is to go.
type beforeNodes struct {
	store.Store

	once sync.Once
	do   func()
}

func (s *beforeNodes) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	if kind == store.Nodes {
		s.once.Do(s.do)
	}
	return s.Store.List(ctx, kind, namespace)
}

// A volume with the same storage, or one in it, may be made after the volumes were listed. It counts if an event has reported it.
func TestStorageOfAVolumeThatIsMadeAfterTheListIsNotReclaimed(t *testing.T) {
	for _, how := range []v1.PersistentVolumeReclaimPolicy{v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRecycle} {
		t.Run(string(how), func(t *testing.T) {
			inWorld(t, objectList{newVolume("a", refTo("c", "uid-c"), policy(how))}, func(t *testing.T, w *world) {
				require.NoError(t, w.plugin.Backend().Create("a", 1<<30))
				made := false
				w.start(&beforeNodes{Store: w.store, do: func() {
					made = true
					w.create(newVolume("b", sameStorage("a")))
					time.Sleep(time.Second) // of the bubble: the event comes
				}}, Options{})
				sleepUntilIdle()
				assert.True(t, made)
				assert.Zero(t, w.calls(fake.MethodDelete)+w.calls(fake.MethodRecycle))
				assert.Contains(t, w.volume("a").Status.Message, `volume "b" has the same storage`)
				w.delete(newVolume("b"))
				sleepUntilIdle()
				assert.Equal(t, 1, w.calls(fake.MethodDelete)+w.calls(fake.MethodRecycle))
			})
		})
	}
}
