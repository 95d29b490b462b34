package volumemanager

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/fake"
	statspkg "github.com/volumekit/volumekit/volumemanager/internal/stats"
)

// rowsOfFigures returns how many volumes have stats once everything is quiet: WaitForUnmount may return while a measurement
// that outlives the pod is ending.
func (w *world) rowsOfFigures() int {
	synctest.Wait()
	return w.manager.stats.Rows()
}

// TestFiguresGoWithTheirPod, without a call of Stats, so that the next pod of that UID has none before it is measured.
func TestFiguresGoWithTheirPod(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.claim("data")
		m := w.start()
		pod := podOf("a", "data")
		w.add(pod)
		stats, err := m.WaitForStats(t.Context(), 0)
		require.NoError(t, err)
		require.False(t, stats[0].Time.IsZero())
		w.remove(pod)
		assert.Zero(t, w.rowsOfFigures())
		w.add(pod)
		assert.Zero(t, m.PodStats(pod.UID, math.MaxInt64)[0].Time, "it was not measured yet")
		w.remove(pod)
		assert.Zero(t, w.rowsOfFigures(), "what was queued is not kept either")
		w.isClean()
	})
}

// TestAMeasurementThatOutlivesItsPodIsDropped: its result is not that of the next pod, and no second measurement runs at the same time.
func TestAMeasurementThatOutlivesItsPodIsDropped(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.claim("data")
		m := w.start()
		pod := podOf("a", "data")
		w.add(pod)
		release := make(chan struct{})
		w.plugin.Inject(fake.MethodGetMetrics, fake.HangUninterruptible(release))
		m.PodStats(pod.UID, 0)
		synctest.Wait()
		w.remove(pod)
		w.add(pod)
		now := m.PodStats(pod.UID, 0)[0]
		assert.Zero(t, now.Time)
		assert.Zero(t, now.Since)
		close(release)
		synctest.Wait()
		assert.Zero(t, m.PodStats(pod.UID, math.MaxInt64)[0].Time)
		stats, err := m.WaitForStats(t.Context(), 0)
		require.NoError(t, err)
		assert.False(t, stats[0].Time.IsZero())
		w.remove(pod)
		assert.Zero(t, w.rowsOfFigures())
	})
}

// TestVolumesThatAnswerAreNotMeasuredBehindThoseThatHang, the first time neither.
func TestVolumesThatAnswerAreNotMeasuredBehindThoseThatHang(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const hung, healthy = 40, 5
		w := newWorld(t, Options{})
		m := w.start()
		release := make(chan struct{})
		for i := range hung + healthy {
			name := fmt.Sprintf("p%d", i)
			w.claim(name)
			w.add(podOf(name, name))
			if i < hung {
				w.plugin.Inject(fake.MethodGetMetrics, fake.HangUninterruptible(release))
			}
		}
		asked := time.Now()
		stats, err := m.WaitForStats(t.Context(), 0)
		require.NoError(t, err)
		measured := 0
		for _, s := range stats {
			if !s.Time.IsZero() {
				measured++
			}
		}
		assert.Equal(t, healthy, measured)
		assert.LessOrEqual(t, time.Since(asked), statspkg.CallerWait+hung*statspkg.WorkerWait, "of the bubble")
		close(release)
		synctest.Wait()
	})
}
