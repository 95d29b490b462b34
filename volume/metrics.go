package volume

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/volume/usage"
)

// MetricsNil is the provider of a volume that cannot be measured. Embed it. The zero value is ready to use.
type MetricsNil struct{}

var _ MetricsProvider = MetricsNil{}

// GetMetrics implements [MetricsProvider]: it always returns an error that matches [ErrUnsupported].
func (MetricsNil) GetMetrics(context.Context) (*Metrics, error) {
	return nil, fmt.Errorf("metrics of this volume: %w", ErrUnsupported)
}

// MetricsOptions says how a provider measures. The zero value measures any filesystem at the path.
type MetricsOptions struct {
	// Measurer makes the measurements. Providers that share a measurer have at most one abandoned call for each path, and together at most
	// MaxAbandoned. The measurer lists these calls. Nil means that the provider has its own measurer.
	Measurer *usage.Measurer
	// Expect is the filesystem to measure: that of a mount at the path, or that of a device. It is checked on the same descriptor
	// that is measured. The zero value accepts any filesystem, as Kubernetes does: after an unmount the result is that of the
	// filesystem above.
	Expect usage.Expect
}

// measurer returns the measurer to use.
func (o MetricsOptions) measurer() *usage.Measurer {
	if o.Measurer != nil {
		return o.Measurer
	}
	return new(usage.Measurer)
}

// MetricsStatFS measures a volume that has a filesystem of its own, by statfs(2). Make it with [NewMetricsStatFS], or with
// [NewMetricsStatFSWith] to check what is mounted at the path. It is cheap, and wrong for a directory that shares its filesystem
// with others: use [MetricsDu] for those.
//
// A statfs of a dead server never returns. If ctx ends first, the call is abandoned. The error then matches [ErrUncertain] and ctx's
// own, and has the method Done() <-chan struct{}: the channel is closed when the call has ended. There is at most one call per
// provider: later callers wait for it too. This holds for every provider of this package.
type MetricsStatFS struct {
	path   string
	statfs func(context.Context) (*Metrics, error)
	shared shared[*Metrics]
}

var _ MetricsProvider = (*MetricsStatFS)(nil)

// NewMetricsStatFS returns the provider for any filesystem that holds path, an absolute path. It does no I/O.
func NewMetricsStatFS(path string) *MetricsStatFS {
	return NewMetricsStatFSWith(path, MetricsOptions{})
}

// NewMetricsStatFSWith returns the provider for the filesystem at path, an absolute path. It does no I/O.
func NewMetricsStatFSWith(path string, options MetricsOptions) *MetricsStatFS {
	measurer := options.measurer()
	return &MetricsStatFS{path: path, statfs: func(ctx context.Context) (*Metrics, error) {
		return metricsOf(measurer.FS(ctx, path, options.Expect))
	}}
}

// GetMetrics implements [MetricsProvider]. It counts blocks in units of f_frsize, like POSIX statvfs. Inodes are nil if the filesystem
// does not count them, like btrfs. If the path does not lead to the expected filesystem, the error matches [usage.ErrWrongFilesystem].
// On other systems than Linux it matches [ErrUnsupported].
func (m *MetricsStatFS) GetMetrics(ctx context.Context) (*Metrics, error) {
	if m.path == "" {
		return nil, errNoPath("statfs")
	}
	metrics, err := m.shared.do(ctx, call{name: "statfs", path: m.path}, m.statfs)
	return metrics.copy(), err
}

// metricsOf converts a result of a measurer.
func metricsOf(info usage.FSInfo, err error) (*Metrics, error) {
	if err != nil {
		return nil, measured(err)
	}
	m := &Metrics{
		Time:      metav1.Now(),
		Capacity:  bytes(info.Capacity),
		Available: bytes(info.Available),
		Used:      bytes(info.Used),
	}
	if info.Inodes > 0 {
		m.Inodes = count(info.Inodes)
		m.InodesFree = count(info.InodesFree)
		m.InodesUsed = count(info.InodesUsed)
	}
	return m, nil
}

// measured makes errors of a measurer match the sentinels of this package.
func measured(err error) error {
	if errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return err
}

// MetricsBlock measures a block device, or the file behind one. Make it with [NewMetricsBlock].
type MetricsBlock struct {
	device string
	size   func(device string) (int64, error)
	shared shared[int64]
}

var _ MetricsProvider = (*MetricsBlock)(nil)

// NewMetricsBlock returns the provider for device, an absolute path. It does no I/O.
func NewMetricsBlock(device string) *MetricsBlock {
	return &MetricsBlock{device: device, size: deviceSize}
}

// GetMetrics implements [MetricsProvider]. It returns only Capacity, and abandons a hanging call like [MetricsStatFS]. On other systems
// than Linux the error matches [ErrUnsupported].
func (m *MetricsBlock) GetMetrics(ctx context.Context) (*Metrics, error) {
	if m.device == "" {
		return nil, errNoPath("size of a device")
	}
	size, err := m.shared.do(ctx, call{name: "size", path: m.device}, func(context.Context) (int64, error) {
		return m.size(m.device)
	})
	if err != nil {
		return nil, err
	}
	return &Metrics{Time: metav1.Now(), Capacity: bytes(size)}, nil
}

// MetricsDu measures a volume that is a directory on a shared filesystem, by walking it. Make it with [NewMetricsDu].
type MetricsDu struct {
	path    string
	options MetricsOptions // with a measurer
	shared  shared[*Metrics]
}

var _ MetricsProvider = (*MetricsDu)(nil)

// NewMetricsDu returns the provider for the directory path, an absolute path. It does no I/O.
func NewMetricsDu(path string) *MetricsDu { return NewMetricsDuWith(path, MetricsOptions{}) }

// NewMetricsDuWith returns the provider for the directory path, an absolute path, with options. It does no I/O.
func NewMetricsDuWith(path string, options MetricsOptions) *MetricsDu {
	options.Measurer = options.measurer()
	return &MetricsDu{path: path, options: options}
}

// GetMetrics implements [MetricsProvider]. Used and InodesUsed are those of the tree below the path: see [usage.Measurer.Measure], which
// reads the project quota if the filesystem has one. The other values are those of the shared filesystem: see [MetricsStatFS]. The walk
// takes a system call per file and ends with ctx. Wrap the provider with [NewCachedMetrics]. On other systems than Linux the error
// matches [ErrUnsupported].
func (m *MetricsDu) GetMetrics(ctx context.Context) (*Metrics, error) {
	if m.path == "" {
		return nil, errNoPath("disk usage")
	}
	metrics, err := m.shared.do(ctx, call{name: "disk usage", path: m.path}, m.measure)
	return metrics.copy(), err
}

func (m *MetricsDu) measure(ctx context.Context) (*Metrics, error) {
	metrics, err := metricsOf(m.options.Measurer.FS(ctx, m.path, m.options.Expect))
	if err != nil {
		return nil, err
	}
	used, err := m.options.Measurer.Measure(ctx, m.path)
	if err != nil {
		return nil, fmt.Errorf("disk usage of %q: %w", m.path, measured(err))
	}
	metrics.Used = bytes(used.Bytes)
	metrics.InodesUsed = count(used.Inodes)
	return metrics, nil
}

// CachedMetrics caches the results of another provider. Make it with [NewCachedMetrics].
type CachedMetrics struct {
	provider MetricsProvider
	ttl      time.Duration
	shared   shared[*Metrics]

	mu   sync.Mutex
	last *Metrics
	at   time.Time
}

var _ MetricsProvider = (*CachedMetrics)(nil)

// NewCachedMetrics returns a provider that keeps each success of provider for ttl. Errors are not kept. Callers at the same
// time share one call, which ends when the contexts of all of them have ended.
func NewCachedMetrics(provider MetricsProvider, ttl time.Duration) *CachedMetrics {
	return &CachedMetrics{provider: provider, ttl: ttl}
}

// GetMetrics implements [MetricsProvider]. Time in the result is the time of the measurement. The caller owns the result.
func (m *CachedMetrics) GetMetrics(ctx context.Context) (*Metrics, error) {
	if kept := m.fresh(); kept != nil {
		return kept, nil
	}
	metrics, err := m.shared.do(ctx, call{name: "metrics"}, m.refresh)
	return metrics.copy(), err
}

// fresh returns a copy of the last success, or nil if it is too old.
func (m *CachedMetrics) fresh() *Metrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last == nil || time.Since(m.at) >= m.ttl {
		return nil
	}
	return m.last.copy()
}

func (m *CachedMetrics) refresh(ctx context.Context) (*Metrics, error) {
	metrics, err := m.provider.GetMetrics(ctx)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last, m.at = metrics, time.Now()
	return metrics, nil
}

// copy returns a deep copy; nil for nil.
func (m *Metrics) copy() *Metrics {
	if m == nil {
		return nil
	}
	c := *m
	for _, q := range []**resource.Quantity{
		&c.Used, &c.Capacity, &c.Available, &c.InodesUsed, &c.Inodes, &c.InodesFree,
	} {
		if *q != nil {
			value := (*q).DeepCopy()
			*q = &value
		}
	}
	return &c
}

func bytes(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }

func count(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.DecimalSI) }

func errNoPath(what string) error {
	return fmt.Errorf("%s: the path is empty: give the path of the volume: %w", what, ErrInvalid)
}
