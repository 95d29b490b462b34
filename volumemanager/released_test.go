package volumemanager

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
)

// isRemembered reports whether it is known that a pod was removed before PodsComplete.
func isRemembered(m *Manager, uid types.UID) bool {
	return !m.recovery.MayUseVolumes(volume.UniquePodName(uid))
}

// TestPodsThatAreRemovedAreForgottenWithoutPodsComplete: an orchestrator may never call it.
func TestPodsThatAreRemovedAreForgottenWithoutPodsComplete(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		w.claim("data")
		m := w.prepare()
		require.NoError(t, m.RemovePod("before-run"))
		assert.True(t, isRemembered(m, "before-run"), "what a restart left is not known yet")
		w.run()
		assert.False(t, isRemembered(m, "before-run"))
		left := podOf("left", "data", "-scratch")
		w.add(left)
		for i := range 20 {
			pod := podOf(fmt.Sprint("pod-", i), "data", "-scratch")
			w.add(pod)
			w.remove(pod)
		}
		require.NoError(t, m.RemovePod("never-here"))
		synctest.Wait()
		for i := range 20 {
			assert.False(t, isRemembered(m, podOf(fmt.Sprint("pod-", i)).UID))
		}
		assert.False(t, isRemembered(m, "never-here"))
		require.NoError(t, w.stop())

		m = w.prepare()
		require.NoError(t, m.RemovePod(left.UID))
		w.run()
		require.NoError(t, m.WaitForUnmount(t.Context(), left))
		synctest.Wait()
		assert.False(t, isRemembered(m, left.UID), "and forgotten when the last of it is gone")
		m.PodsComplete()
		w.isClean()
	})
}

// TestAPodThatIsRemovedWhileItIsSetUpIsNotForgotten: what the set-up leaves has to go, before PodsComplete too.
func TestAPodThatIsRemovedWhileItIsSetUpIsNotForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		m := w.start()
		release := make(chan struct{})
		w.plugin.Inject(fake.MethodSetUp, fake.HangUntil(release))
		pod := podOf("web", "-scratch")
		require.NoError(t, m.AddPod(t.Context(), pod))
		synctest.Wait()
		require.NoError(t, m.RemovePod(pod.UID))
		synctest.Wait()
		assert.True(t, isRemembered(m, pod.UID))
		close(release)
		require.NoError(t, m.WaitForUnmount(t.Context(), pod))
		synctest.Wait()
		assert.False(t, isRemembered(m, pod.UID))
		m.PodsComplete()
		w.isClean()
	})
}
