package volumemanager

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// detachBehind detaches a volume without telling the manager.
func (w *world) detachBehind(claim string) {
	w.t.Helper()
	c := &controller{world: w, plugin: fake.NewPlugin(fake.PluginOptions{Mounter: w.mounter, Backend: w.backend})}
	c.detach(claim)
}

// TestAVolumeThatIsFoundDetachedIsAttachedAgain, and what uses it is left alone.
func TestAVolumeThatIsFoundDetachedIsAttachedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		recorder := &fake.Recorder{}
		o := withRecords(t)
		o.Resync, o.Recorder = time.Minute, recorder
		w := newWorld(t, o)
		w.claim("data")
		w.claim("free")
		m := w.start()
		m.PodsComplete()
		pod, waiting := podOf("web", "data"), podOf("db", "free")
		w.add(pod)
		w.plugin.Inject(fake.MethodMountDevice, fake.FailN(10, errStore))
		require.NoError(t, m.AddPod(t.Context(), waiting))
		require.NoError(t, w.plugin.AwaitCalls(t.Context(), fake.MethodMountDevice, 2))
		mounts := w.mounts()
		attached := w.count(fake.MethodAttach)

		w.detachBehind("data")
		w.detachBehind("free")
		pass(2 * time.Minute)
		assert.Equal(t, attached+2, w.count(fake.MethodAttach))
		assert.Len(t, w.backend.Nodes("disk-data"), 1)
		assert.Len(t, w.backend.Nodes("disk-free"), 1)
		assert.Subset(t, w.mounts(), mounts)
		assert.True(t, m.VolumeIsAttached(nameOfClaim("data")))
		told := 0
		for _, e := range recorder.Events() {
			if e.Reason == operationexecutor.ReasonVolumeNotAttached {
				told++
			}
		}
		assert.Equal(t, 2, told)
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
		w.remove(waiting)
		w.remove(pod)
		w.isClean()
	})
}

// TestAVolumeThatIsFoundDetachedOnItsWayOutIsForgotten.
func TestAVolumeThatIsFoundDetachedOnItsWayOutIsForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		o := withRecords(t)
		o.Resync = time.Minute
		w := newWorld(t, o)
		w.claim("data")
		m := w.start()
		m.PodsComplete()
		pod := podOf("web", "data")
		w.add(pod)
		w.plugin.Inject(fake.MethodUnmountDevice, fake.FailN(8, volume.Transient(errStore)))
		w.remove(pod)
		w.detachBehind("data")
		pass(time.Hour)
		w.isClean()
	})
}

// TestAMissingAnswerDelaysNoVolume: the resync continues, and other volumes are set up and torn down.
func TestAMissingAnswerDelaysNoVolume(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{Resync: time.Minute})
		w.claim("data")
		w.claim("other")
		m := w.start()
		m.PodsComplete()
		w.add(podOf("web", "data"))
		release := make(chan struct{})
		w.plugin.Inject(fake.MethodVolumesAreAttached, fake.HangUninterruptible(release), fake.Fail(errStore), fake.PanicWith("oops"))
		pass(5 * time.Minute)
		w.add(podOf("db", "other"))
		w.remove(podOf("db"))
		assert.Greater(t, w.count(fake.MethodVolumesAreAttached), 2)
		assert.Equal(t, 2, w.count(fake.MethodAttach), "no answer is no news")
		close(release)
		w.remove(podOf("web"))
		w.isClean()
	})
}
