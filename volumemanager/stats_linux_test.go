package volumemanager

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/health"
)

func TestStatsOfHungStorageAreTheLastOnesWithTheirAge(t *testing.T) {
	n, f, pod := newFaultyNode(t)
	n.run()
	n.add(pod)
	other := emptyDirPod("other")
	n.add(other)
	assert.Zero(t, f.Count(mounttest.FUSEStatfs), "nothing is measured before the first read of stats")
	require.Len(t, n.m.Stats(time.Hour), 2)

	stats, err := n.m.WaitForStats(t.Context(), time.Hour)
	require.NoError(t, err)
	require.Len(t, stats, 2)
	first := stats[0]
	require.NoError(t, first.Err)
	assert.NotNil(t, first.CapacityBytes)
	assert.Equal(t, "data", first.OuterName)
	assert.ErrorIs(t, stats[1].Err, volume.ErrUnsupported)
	asked := f.Count(mounttest.FUSEStatfs)
	_, err = n.m.WaitForStats(t.Context(), time.Hour)
	require.NoError(t, err)
	assert.Equal(t, asked, f.Count(mounttest.FUSEStatfs), "they were young enough")

	f.Hang(mounttest.FUSEStatfs)
	n.m.Stats(0)
	f.Await(mounttest.FUSEStatfs)
	hung := n.m.PodStats(pod.UID, 0)[0]
	assert.Equal(t, first.Time, hung.Time)
	assert.Equal(t, first.CapacityBytes, hung.CapacityBytes)
	assert.False(t, hung.Since.IsZero())
	assert.Positive(t, hung.Age())
	_, err = n.m.WaitForStats(t.Context(), 0)
	require.NoError(t, err, "what hangs is not waited for")
	assert.Equal(t, 1, hungCalls(f), "one call hangs, however often stats are read")

	f.Heal()
	healed, err := n.m.WaitForStats(t.Context(), 0)
	require.NoError(t, err)
	require.Len(t, healed, 2)
	n.remove(pod)
	n.remove(other)
}

// TestWaitForStatsReturnsWhatItHasWaitedFor asks for figures that are measured while it looks whether it must wait.
func TestWaitForStatsReturnsWhatItHasWaitedFor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8)) // Who measures is to run in the middle of who asks.
	n, _, pod := newFaultyNode(t)
	n.run()
	n.add(pod)
	for range 500 {
		asked := time.Now()
		stats, err := n.m.WaitForStats(t.Context(), 0)
		require.NoError(t, err)
		require.Len(t, stats, 1)
		require.False(t, stats[0].Time.Before(asked), "the figures are those that were there before")
	}
	n.remove(pod)
}

func hungCalls(f *mounttest.FUSE) int {
	before := f.Count(mounttest.FUSEStatfs)
	f.Answer(0)
	return max(1, f.Count(mounttest.FUSEStatfs)-before)
}

// TestDeadServerIsNoticedAtStatsAndAtTheResync holds for a volume that cannot be measured, too.
func TestDeadServerIsNoticedAtStatsAndAtTheResync(t *testing.T) {
	for name, look := range map[string]func(*watchedNode){
		"stats":  func(n *watchedNode) { n.m.Stats(0) },
		"resync": func(n *watchedNode) { n.m.watch.Resync() },
	} {
		t.Run(name, func(t *testing.T) {
			n, f, pod := newFaultyNode(t)
			n.run()
			path := n.add(pod)
			f.Kill()
			for !isUnreachable(n.m.PodStatus(pod.UID)) {
				look(n)
				require.NoError(t, n.awaitMeasured())
			}
			s := n.until(pod, has(ReasonUnreachable))
			require.ErrorIs(t, s.Conditions[0].Err, unix.ENOTCONN)
			assert.Equal(t, PhaseMounted, s.Phase)
			assert.Equal(t, 1, n.events.count(health.EventAbnormal))
			n.remove(pod)
			assert.NoDirExists(t, path)
		})
	}
}

// TestServerThatFailsIsNoticedAndTheVolumeComesBackByItself lets it answer with an error for a while.
func TestServerThatFailsIsNoticedAndTheVolumeComesBackByItself(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EIO, unix.ESTALE} {
		n, f, pod := newFaultyNode(t)
		n.run()
		path := n.add(pod)
		f.Fail(mounttest.FUSEAny, errno)
		_, err := n.m.WaitForStats(t.Context(), 0)
		require.NoError(t, err)
		s := n.until(pod, has(ReasonUnreachable))
		require.ErrorIs(t, s.Conditions[0].Err, errno)
		f.Heal()
		_, err = n.m.WaitForStats(t.Context(), 0)
		require.NoError(t, err)
		n.until(pod, isWell)
		n.remove(pod)
		assert.NoDirExists(t, path)
	}
}

// awaitMeasured returns when no measurement is waited for.
func (n *watchedNode) awaitMeasured() error {
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	_, err := n.m.WaitForStats(ctx, time.Hour)
	return err
}

func isUnreachable(status []VolumeStatus) bool {
	return len(status) == 1 && has(ReasonUnreachable)(status[0])
}
