package volume

import "context"

// Dir is a [Volume] that is a path with a filesystem of its own: embed it in the mounter and the unmounter of a small
// plugin, which are then used by pointer. A plugin whose volumes share a filesystem embeds [MetricsDu] or [MetricsNil]
// in a type of its own instead.
type Dir struct {
	// Path is the absolute path at which the volume is set up. It must not change after the first use.
	Path string

	flight flight[*Metrics]
}

var _ Volume = (*Dir)(nil)

// GetPath implements [Volume].
func (d *Dir) GetPath() string { return d.Path }

// GetMetrics implements [MetricsProvider] as [MetricsStatFS] does.
func (d *Dir) GetMetrics(ctx context.Context) (*Metrics, error) {
	if d.Path == "" {
		return nil, errNoPath("statfs")
	}
	metrics, err := d.flight.do(ctx, call{name: "statfs", path: d.Path}, func(context.Context) (*Metrics, error) {
		return statfs(d.Path)
	})
	return metrics.copy(), err
}
