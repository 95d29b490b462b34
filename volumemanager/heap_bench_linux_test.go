package volumemanager

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount/mounttest"
)

// BenchmarkLiveHeap is what a manager keeps for each of many volumes, one in a pod, once all are ready. Run it once.
func BenchmarkLiveHeap(b *testing.B) {
	b.Run("plugin=instant", func(b *testing.B) {
		pods := diskPods(10_000, func(i int) string { return fmt.Sprintf("disk-%d", i) })
		reportLive(b, benchManagerOf(b, &instantDisk{}, Options{Resync: -1}), pods)
	})
	b.Run("plugin=tmpfs", func(b *testing.B) {
		mounttest.RequireMounts(b)
		pods := make([]*v1.Pod, 2_000)
		for i := range pods {
			pods[i] = emptyDirPod(fmt.Sprintf("pod-%d", i))
		}
		m, stop := newRealNode(b).start(b)
		m.PodsComplete()
		reportLive(b, m, pods)
		for _, pod := range pods {
			require.NoError(b, m.RemovePod(pod.UID))
		}
		require.NoError(b, m.WaitForNodeEmpty(b.Context()))
		stop()
	})
}

// reportLive makes the volumes of pods ready, and reports by how much the heap has grown.
func reportLive(b *testing.B, m *Manager, pods []*v1.Pod) {
	b.Helper()
	for b.Loop() {
		before := liveHeap()
		for _, pod := range pods {
			require.NoError(b, m.AddPod(b.Context(), pod))
		}
		for _, pod := range pods {
			require.NoError(b, m.WaitForAttachAndMount(b.Context(), pod))
		}
		b.ReportMetric(float64(liveHeap()-before)/float64(len(pods)), "live-B/volume")
	}
	runtime.KeepAlive(pods)
}

func liveHeap() uint64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC() // What the first has found to be garbage in pools is gone now.
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
