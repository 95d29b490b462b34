// Package stats measures volumes, a few at a time, and keeps the results. A measurement that hangs delays no other.
package stats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/changes"
	"github.com/volumekit/volumekit/volumemanager/internal/health"
	"github.com/volumekit/volumekit/volumemanager/internal/mounter"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

const (
	// workers is how many volumes are measured at a time. maxSlow is how many more measurements may run that have taken
	// longer than WorkerWait: each holds a goroutine, and a thread if it hangs. When maxSlow measurements have taken
	// longer than CallerWait, no other begins.
	workers = 4
	maxSlow = 64
	// timeout bounds a measurement. Counting many files takes long.
	timeout = time.Minute
)

// Options is what a [Collector] needs.
type Options struct {
	// Logger logs failures.
	Logger *slog.Logger
	// Volumes returns the set-ups of volumes.
	Volumes Volumes
	// PublicKeys returns the keys of a plugin whose values may be shown.
	PublicKeys func(pluginName string) []string
	// Health gets the conditions that a measurement finds.
	Health *health.Table
	// IsMount reports whether a mount of the manager is at a path.
	IsMount func(path string) bool
	// Measured is called after the volume at a path was measured.
	Measured func(path string)
}

// Volumes is the part of the actual state that a [Collector] reads.
type Volumes interface {
	// GetMountedVolume returns a set-up; false if there is none.
	GetMountedVolume(name v1.UniqueVolumeName, pod volume.UniquePodName) (cache.MountedVolume, bool)
}

// Collector measures volumes. Make it with [New]. It measures nothing before Run.
type Collector struct {
	options  Options
	readings *readings
	measured changes.Hub
}

// New returns a collector that has measured nothing.
func New(o Options) *Collector { return &Collector{options: o, readings: newReadings()} }

// Read returns the last result for a volume, and queues a measurement if the result is older than maxAge. While a
// measurement of an earlier set-up still runs, it returns nothing and queues nothing.
func (c *Collector) Read(key podvolume.Key, maxAge time.Duration, state operationexecutor.VolumeMountState) Reading {
	return c.readings.read(key, maxAge, state)
}

// Probe queues a check of whether the volume's filesystem answers, unless a measurement runs.
func (c *Collector) Probe(key podvolume.Key) { c.readings.probe(key) }

// Drop forgets a pod's volume that was torn down.
func (c *Collector) Drop(key podvolume.Key) { c.readings.drop(key) }

// Keep forgets all volumes except the known ones and those that are being measured.
func (c *Collector) Keep(known map[podvolume.Key]struct{}) { c.readings.keep(known) }

// Rows returns how many volumes the collector knows.
func (c *Collector) Rows() int {
	c.readings.mu.Lock()
	defer c.readings.mu.Unlock()
	return len(c.readings.rows)
}

// Subscribe returns a channel that receives a token after any volume was measured. The caller must call cancel.
func (c *Collector) Subscribe() (measured <-chan struct{}, cancel func()) {
	return c.measured.Subscribe(changes.AnyPod)
}

// NextWaitEnd returns when callers have to stop waiting for the next of the measurements that run or are queued. waits is
// false if there are none.
func (c *Collector) NextWaitEnd() (next time.Time, waits bool) { return c.readings.nextWaitEnd() }

// Stop ends the queue of volumes to be measured.
func (c *Collector) Stop() { c.readings.queue.Stop() }

// Run starts the workers, which measure volumes until ctx ends.
func (c *Collector) Run(ctx context.Context, wg *sync.WaitGroup) {
	for range workers {
		wg.Go(func() {
			for {
				h, ok := c.readings.queue.Get(ctx)
				if !ok {
					return
				}
				c.measure(ctx, h)
			}
		})
	}
}

// measure measures one volume. It waits only as long as WorkerWait, or CallerWait if too many measurements are slow; the measurement may run longer.
func (c *Collector) measure(ctx context.Context, h podvolume.Key) {
	kind, ok := c.readings.begin(h)
	if !ok {
		return
	}
	mounted, ok := c.options.Volumes.GetMountedVolume(h.Volume, h.Pod)
	switch {
	case !ok:
		c.readings.drop(h) // The volume was torn down after it was queued.
		c.end(h, measurement{})
		return
	case !canMeasure(mounted.State):
		c.end(h, measurement{})
		return
	case kind == refused:
		err := fmt.Errorf("volume %q was not measured: %d measurements hang already: %w", h.Volume, maxSlow, mount.ErrStuck)
		c.end(h, measurement{err: err})
		return
	}
	wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.readings.workerWait())
	defer cancel()
	if left := abandonable.Await(wait, 0, func() { c.end(h, c.query(ctx, h, mounted, kind)) }); left != nil {
		c.readings.leave(h)
	}
}

func (c *Collector) end(h podvolume.Key, got measurement) {
	c.readings.end(h, got)
	c.measured.Notify(h.Pod)
}

// query measures a volume, or only checks its filesystem, and then asks the plugin for its health.
func (c *Collector) query(ctx context.Context, h podvolume.Key, mounted cache.MountedVolume, kind measurementKind) (got measurement) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if kind == probed {
		_, got.err = volume.NewMetricsStatFS(mounted.MountPath).GetMetrics(ctx)
	} else {
		got.metrics, got.err = c.queryMetrics(ctx, mounted)
	}
	var now []health.Condition
	if condition, bad := conditionOf(got.err); bad {
		now = append(now, condition)
	}
	c.options.Health.Report(h, health.Use, now)
	c.queryHealth(ctx, h, mounted)
	c.options.Measured(mounted.MountPath)
	return got
}

// queryMetrics asks the plugin for the metrics of a volume. If the plugin cannot measure the volume, and it is a mount,
// queryMetrics checks that its filesystem answers.
func (c *Collector) queryMetrics(ctx context.Context, mounted cache.MountedVolume) (*volume.Metrics, error) {
	provider := providerOf(mounted)
	if provider == nil {
		return nil, fmt.Errorf("volume %q: %w", mounted.VolumeName, volume.ErrUnsupported)
	}
	metrics, err := guardedCall(mounted.PluginName, "GetMetrics", func() (*volume.Metrics, error) { return provider.GetMetrics(ctx) })
	err = c.secretsOf(mounted).Redact(err)
	if !errors.Is(err, volume.ErrUnsupported) || !c.options.IsMount(mounted.MountPath) {
		return metrics, err
	}
	if _, probeErr := volume.NewMetricsStatFS(mounted.MountPath).GetMetrics(ctx); probeErr != nil {
		return nil, probeErr
	}
	return nil, err
}

// secretsOf returns the secrets that the plugin got with a volume. They must not appear in errors or conditions.
func (c *Collector) secretsOf(mounted cache.MountedVolume) volume.Secrets {
	return mounted.VolumeSpec.Secrets(c.options.PublicKeys(mounted.PluginName))
}

func providerOf(mounted cache.MountedVolume) volume.MetricsProvider {
	switch {
	case mounted.Mounter != nil:
		return mounter.PluginsOwn(mounted.Mounter)
	case mounted.BlockVolumeMapper != nil:
		provider, _ := mounted.BlockVolumeMapper.(volume.MetricsProvider)
		return provider
	}
	return nil
}

// queryHealth asks a plugin for the health of a volume, if the plugin reports it. If the plugin's call fails, the earlier
// conditions stay.
func (c *Collector) queryHealth(ctx context.Context, h podvolume.Key, mounted cache.MountedVolume) {
	reporter, ok := providerOf(mounted).(volume.HealthReporter)
	if !ok {
		return
	}
	found, err := guardedCall(mounted.PluginName, "GetHealth", func() ([]volume.HealthCondition, error) { return reporter.GetHealth(ctx) })
	secrets := c.secretsOf(mounted)
	if err = secrets.Redact(err); err != nil {
		c.options.Logger.Warn("the health of a volume could not be asked for", "volume", h.Volume, "pod", h.Pod, "error", err)
		return
	}
	var now []health.Condition
	for _, condition := range found {
		if condition.Status != volume.HealthNormal {
			condition.Message = secrets.RedactText(condition.Message)
			now = append(now, health.Condition{HealthCondition: condition})
		}
	}
	c.options.Health.Report(h, health.Plugin, now)
}

// guardedCall calls a plugin, and returns a panic as an error.
func guardedCall[T any](plugin, call string, f func() (T, error)) (value T, err error) {
	returned := false
	defer func() {
		if !returned {
			err = &volume.PanicError{Plugin: plugin, Call: call, Value: recover(), Stack: debug.Stack()}
		}
	}()
	value, err = f()
	returned = true
	return value, err
}

// unreachable are the errors of a filesystem or device whose server, daemon or disk is gone.
var unreachable = []error{
	syscall.ENOTCONN, syscall.ECONNABORTED, syscall.ESTALE, syscall.EIO, syscall.ENODEV, syscall.ENXIO, syscall.EHOSTDOWN, syscall.ETIMEDOUT,
}

// conditionOf returns the condition that an error of a measurement shows; false if it shows none.
func conditionOf(err error) (health.Condition, bool) {
	for _, reason := range unreachable {
		if errors.Is(err, reason) {
			return health.Abnormal(health.Unreachable, fmt.Errorf("its storage does not serve it: %w", err)), true
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return health.Abnormal(health.Hung, fmt.Errorf("a measurement of it does not return: %w", err)), true
	}
	return health.Condition{}, false
}

// canMeasure reports whether a volume may be measured. If it is uncertain whether the volume is mounted, a measurement could
// return the stats of the filesystem below it.
func canMeasure(state operationexecutor.VolumeMountState) bool {
	return state == operationexecutor.VolumeMounted
}
