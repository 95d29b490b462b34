package volumemanager

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// unusedNow calls WaitForVolumeUnused with a context that has ended: it reports the present state.
func (w *world) unusedNow(name string) error {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	cancel()
	return w.manager.WaitForVolumeUnused(ctx, w.volumeOf(name))
}

// volumeOf returns the PersistentVolume of a claim.
func (w *world) volumeOf(claim string) *v1.PersistentVolume {
	w.t.Helper()
	pv, err := store.Get[*v1.PersistentVolume](w.t.Context(), w.store, "", "pv-"+claim)
	require.NoError(w.t, err)
	return pv
}

// A volume is in use from the moment a pod wants it until nothing of it is left on the node. It does not matter whether pods
// share it.
func TestAVolumeIsUsedUntilNothingOfItIsLeft(t *testing.T) {
	for name, without := range map[string]volume.Capabilities{
		"attached": 0, "staged": volume.CapAttach, "of each pod alone": volume.CapAttach | volume.CapDeviceMount,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWorld(t, Options{})
				w.without = without
				w.claim("data")
				w.claim("other")
				w.start().PodsComplete()
				require.NoError(t, w.unusedNow("data"))

				pod := podOf("web", "data")
				w.add(pod)
				err := w.unusedNow("data")
				var notReady *volume.NotReadyError
				require.ErrorAs(t, err, &notReady)
				require.Len(t, notReady.Volumes, 1)
				assert.Equal(t, store.NameOf(pod), notReady.Volumes[0].PodName)
				require.NoError(t, w.unusedNow("other"))

				unused := make(chan error, 1)
				go func() { unused <- w.manager.WaitForVolumeUnused(t.Context(), w.volumeOf("data")) }()
				synctest.Wait()
				require.Empty(t, unused)
				require.NoError(t, w.manager.RemovePod(pod.UID))
				require.NoError(t, <-unused)
				w.isClean()
			})
		})
	}
}

// A volume of an earlier manager is in use as long as it is on the node. Before the records are read, every volume may be.
func TestAVolumeOfAnEarlierManagerIsUsed(t *testing.T) {
	for name, without := range map[string]volume.Capabilities{"attached": 0, "of each pod alone": volume.CapAttach | volume.CapDeviceMount} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWorld(t, Options{RuntimeDir: t.TempDir()})
				w.without = without
				w.claim("data")
				w.claim("other")
				w.start().PodsComplete()
				w.add(podOf("web", "data"))
				require.NoError(t, w.stop())

				w.prepare()
				require.Error(t, w.unusedNow("other"), "nothing is known yet")
				w.run()
				require.Error(t, w.unusedNow("data"))
				require.NoError(t, w.unusedNow("other"))
				w.manager.PodsComplete()
				require.NoError(t, w.manager.WaitForVolumeUnused(t.Context(), w.volumeOf("data")))
				w.isClean()
			})
		})
	}
}

// slowReads is a store whose reads of PersistentVolumes wait until the test lets them go on.
type slowReads struct {
	store.Store

	begun, goOn chan struct{}
}

func (s slowReads) Get(ctx context.Context, key store.Key) (runtime.Object, error) {
	if key.Kind == store.PersistentVolumes {
		s.begun <- struct{}{}
		<-s.goOn
	}
	return s.Store.Get(ctx, key)
}

// While the claims of a pod are being read, every volume that they may be bound to counts as in use.
func TestAVolumeIsUsedWhileTheClaimsOfAPodAreRead(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		reads := slowReads{begun: make(chan struct{}), goOn: make(chan struct{})}
		w.claim("data")
		w.wrapStore = func(s store.Store) store.Store {
			reads.Store = s
			return reads
		}
		w.start().PodsComplete()
		added := make(chan error, 1)
		go func() { added <- w.manager.AddPod(t.Context(), podOf("web", "data")) }()
		<-reads.begun
		require.Error(t, w.unusedNow("data"))
		close(reads.goOn)
		require.NoError(t, <-added)
		require.Error(t, w.unusedNow("data"))
	})
}

func TestAVolumeWithoutANameIsNotWaitedFor(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.start()
		require.ErrorIs(t, w.manager.WaitForVolumeUnused(t.Context(), nil), volume.ErrInvalid)
		require.ErrorIs(t, w.manager.WaitForVolumeUnused(t.Context(), &v1.PersistentVolume{}), volume.ErrInvalid)
	})
}
