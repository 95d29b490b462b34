package volumemanager

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
)

func TestThePodsOfAVolumeAreThoseThatWantItOrMayHaveIt(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		m := w.start()
		m.PodsComplete()
		attached, tornDown := make(chan struct{}), make(chan struct{})
		w.plugin.Inject(fake.MethodAttach, fake.HangUntil(attached))
		w.plugin.Inject(fake.MethodTearDown, fake.HangUntil(tornDown))
		w.claim("data")
		pod := podOf("web", "data")
		require.NoError(t, m.AddPod(t.Context(), pod))
		synctest.Wait()
		assert.Equal(t, []volume.UniquePodName{"uid-web"}, m.PodsOfVolume(v1.UniqueVolumeName(w.unique("data"))), "it wants the volume")
		close(attached)
		synctest.Wait()
		require.NoError(t, m.RemovePod(pod.UID))
		synctest.Wait()
		assert.Equal(t, []volume.UniquePodName{"uid-web"}, m.PodsOfVolume(v1.UniqueVolumeName(w.unique("data"))), "it may have the volume")
		close(tornDown)
		synctest.Wait()
		assert.Empty(t, m.PodsOfVolume(v1.UniqueVolumeName(w.unique("data"))))
	})
}
