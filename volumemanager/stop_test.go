package volumemanager

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
)

// TestAStopFinishesWhatIsTakenAwayAndLeavesTheRest: WaitForUnmount returns before the volume is unstaged and detached, and
// the program ends then.
func TestAStopFinishesWhatIsTakenAwayAndLeavesTheRest(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		w.claim("data")
		w.claim("other")
		m := w.start()
		m.PodsComplete()
		gone, stays := podOf("gone", "data"), podOf("stays", "other", "-scratch")
		w.add(gone)
		w.add(stays)
		release := make(chan struct{})
		w.plugin.Inject(fake.MethodUnmountDevice, fake.HangUntil(release))
		require.NoError(t, m.RemovePod(gone.UID))
		require.NoError(t, m.WaitForUnmount(t.Context(), gone))
		before := len(w.mounts())
		ended := make(chan error, 1)
		go func() { ended <- m.Stop(t.Context()) }()
		synctest.Wait()
		close(release)
		require.NoError(t, <-ended)
		require.NoError(t, w.stop(), "Run has returned, without an error")
		assert.Len(t, w.mounts(), before-1, "the staging of the pod that has gone")
		assert.Equal(t, []string{"UnmountDevice", "Detach"}, w.changes()[len(w.changes())-2:])
		assert.Empty(t, m.Status().LostData)

		next := w.start()
		w.add(stays)
		next.PodsComplete()
		w.remove(stays)
		w.isClean()
	})
}

// TestAStopTriesAgainWhatFails until it succeeds, and begins nothing that is wanted meanwhile.
func TestAStopTriesAgainWhatFails(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.claim("data")
		w.claim("late")
		m := w.start()
		m.PodsComplete()
		gone, late := podOf("gone", "data"), podOf("late", "late")
		w.add(gone)
		w.plugin.Inject(fake.MethodTearDown, fake.FailN(3, volume.Transient(assert.AnError)))
		require.NoError(t, m.RemovePod(gone.UID))
		ended := make(chan error, 1)
		go func() { ended <- m.Stop(t.Context()) }()
		synctest.Wait()
		require.NoError(t, m.AddPod(t.Context(), late))
		require.NoError(t, <-ended)
		require.NoError(t, w.stop())
		assert.Empty(t, w.mounts())
		require.ErrorIs(t, m.WaitForAttachAndMount(t.Context(), late), ErrStopped)
	})
}

// TestAStopThatHasNoMoreTimeSaysWhatIsLeft, and ends Run all the same.
func TestAStopThatHasNoMoreTimeSaysWhatIsLeft(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.claim("data")
		w.claim("kept")
		m := w.start()
		m.PodsComplete()
		gone := podOf("gone", "data")
		w.add(gone)
		w.add(podOf("kept", "kept"))
		w.plugin.Inject(fake.MethodTearDown, fake.HangUntil(make(chan struct{})))
		require.NoError(t, m.RemovePod(gone.UID))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := m.Stop(ctx)
		var left *volume.NotReadyError
		require.ErrorAs(t, err, &left)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Len(t, left.Volumes, 1, "what is wanted is not left over")
		assert.Equal(t, nameOfClaim("data"), left.Volumes[0].Volume)
		require.NoError(t, w.stop())
	})
}

func TestAStopBeforeRunEndsItAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		m := w.prepare()
		require.NoError(t, m.Stop(t.Context()))
		require.NoError(t, m.Run(t.Context()))
		require.NoError(t, m.Stop(t.Context()), "a second time")
	})
}

// TestAStopTellsTheControllerWhatIsNotInUseAnyMore, which waits for that to detach it.
func TestAStopTellsTheControllerWhatIsNotInUseAnyMore(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		c := newController(w)
		w.claim("data")
		m := w.start()
		m.PodsComplete()
		pod := podOf("web", "data")
		require.NoError(t, m.AddPod(t.Context(), pod))
		synctest.Wait()
		c.attach("data")
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
		require.NoError(t, m.RemovePod(pod.UID))
		require.NoError(t, m.Stop(t.Context()))
		require.NoError(t, w.stop())
		assert.Empty(t, c.inUse())
		assert.Empty(t, w.mounts())
	})
}
