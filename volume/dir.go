package volume

import (
	"context"

	"github.com/volumekit/volumekit/volume/usage"
)

// Dir is a [Volume] that is a path with a filesystem of its own, mounted there: embed it in the mounter and the unmounter
// of a small plugin, which are then used by pointer. A plugin whose volumes share a filesystem embeds [MetricsDu] or
// [MetricsNil] in a type of its own instead.
type Dir struct {
	// Path is the absolute path at which the volume is set up. It must not change after the first use.
	Path string

	shared shared[*Metrics]
}

var _ Volume = (*Dir)(nil)

// GetPath implements [Volume].
func (d *Dir) GetPath() string { return d.Path }

// GetMetrics implements [MetricsProvider] as [MetricsStatFS] does. Where nothing is mounted at the path, the error
// matches [usage.ErrWrongFilesystem]: what statfs says there is of another filesystem.
func (d *Dir) GetMetrics(ctx context.Context) (*Metrics, error) {
	if d.Path == "" {
		return nil, errNoPath("statfs")
	}
	metrics, err := d.shared.do(ctx, call{name: "statfs", path: d.Path}, func(ctx context.Context) (*Metrics, error) {
		return metricsOf(usage.FS(ctx, d.Path, usage.Expect{MountPoint: true}))
	})
	return metrics.copy(), err
}
