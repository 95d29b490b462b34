package cache

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/cachetest"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// BenchmarkHeap reports how much the states keep for each volume, beside the objects that the caller gave.
func BenchmarkHeap(b *testing.B) {
	const rows = 10000
	b.Run("node", func(b *testing.B) {
		options, marks := make([]AddPodOptions, rows), make([]operationexecutor.MountedVolume, rows)
		plugins := cachetest.NewAnyPlugins(b)
		for i := range rows {
			options[i] = wanting(fmt.Sprint("pod", i), fmt.Sprint("o", i))
			name, err := plugins.UniqueVolumeName(volume.GetUniquePodName(options[i].Pod), options[i].VolumeSpec)
			require.NoError(b, err)
			marks[i] = mounting(name, options[i])
		}
		for b.Loop() {
			before := cachetest.Heap()
			d, a := NewDesiredStateOfWorld(plugins, Options{}), NewActualStateOfWorld("node", plugins, Options{})
			for i := range rows {
				_, err := d.AddPodToVolume(options[i])
				require.NoError(b, err)
				require.NoError(b, a.MarkVolumeAsAttached(marks[i].VolumeName, options[i].VolumeSpec, "node", ""))
				require.NoError(b, a.MarkVolumeAsMounted(marks[i]))
			}
			b.ReportMetric(float64(cachetest.Heap()-before)/rows, "B/volume")
			runtime.KeepAlive([]any{d, a, options, marks})
		}
	})
}
