package cluster

import (
	"runtime"
	"testing"

	"github.com/volumekit/volumekit/internal/cachetest"
)

// BenchmarkHeap reports how much the states keep for each attachment, beside the objects that the caller gave.
func BenchmarkHeap(b *testing.B) {
	const nodes = 500
	for b.Loop() {
		before := cachetest.Heap()
		d, a := filledCluster(b, nodes)
		b.ReportMetric(float64(cachetest.Heap()-before)/(nodes*perNode), "B/attachment")
		runtime.KeepAlive([]any{d, a})
	}
}
