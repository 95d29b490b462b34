package volumemanager

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
)

// TestTwoManagersInOneProcessNeverMeet: each has its own node, plugins and records, and pods and volumes of the same names
// on both are two.
func TestTwoManagersInOneProcessNeverMeet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		worlds := []*world{newWorld(t, Options{}), newWorld(t, Options{})}
		for _, w := range worlds {
			for i := range 5 {
				w.claim(fmt.Sprint("data-", i))
			}
			w.start()
			w.manager.PodsComplete()
		}
		everywhere := func(do func(w *world)) {
			var both sync.WaitGroup
			for _, w := range worlds {
				both.Go(func() { do(w) })
			}
			both.Wait()
			synctest.Wait()
		}
		everywhere(func(w *world) {
			for i := range 5 {
				pod := podOf(fmt.Sprint("pod-", i), fmt.Sprint("data-", i))
				assert.NoError(t, w.manager.AddPod(t.Context(), pod))
				assert.NoError(t, w.manager.WaitForAttachAndMount(t.Context(), pod))
			}
		})
		for _, w := range worlds {
			assert.Len(t, w.manager.Status().Volumes, 5)
			assert.Empty(t, w.manager.Hung())
		}
		mounts := worlds[1].mounts()
		for i := range 5 {
			pod := podOf(fmt.Sprint("pod-", i), fmt.Sprint("data-", i))
			worlds[0].remove(pod)
		}
		synctest.Wait()
		worlds[0].isClean()
		assert.Equal(t, mounts, worlds[1].mounts(), "the other one's mounts stay")
	})
}
