package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/internal/lostcall"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

const (
	// statsWorkers is how many volumes are measured at a time, and maxSlow how many more may be that have taken longer than
	// workerPatience: each keeps a goroutine, and where it hangs a thread. When so many have taken longer than statsPatience,
	// no other begins.
	statsWorkers = 4
	maxSlow      = 64
	// statsTimeout bounds a measurement. A walk through many files takes long.
	statsTimeout = time.Minute
)

// measureVolumes starts what measures volumes when somebody asks.
func (m *Manager) measureVolumes(ctx context.Context, wg *sync.WaitGroup) {
	for range statsWorkers {
		wg.Go(func() {
			for {
				h, ok := m.figures.queue.Get(ctx)
				if !ok {
					return
				}
				m.measure(ctx, h)
			}
		})
	}
}

// measure has one volume measured, and waits for that only as long as a worker's patience lasts.
func (m *Manager) measure(ctx context.Context, h podvolume.Key) {
	how, ok := m.figures.begin(h)
	if !ok {
		return
	}
	mounted, ok := m.actual.GetMountedVolume(h.Volume, h.Pod)
	switch {
	case !ok:
		m.figures.drop(h) // It was torn down after it was queued.
		m.figureEnds(h, measurement{})
		return
	case !canMeasure(mounted.State):
		m.figureEnds(h, measurement{})
		return
	case how == refused:
		err := fmt.Errorf("volume %q was not measured: %d measurements hang already: %w", h.Volume, maxSlow, mount.ErrStuck)
		m.figureEnds(h, measurement{err: err})
		return
	}
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.figures.patience())
	defer cancel()
	if left := lostcall.Await(patience, 0, func() { m.figureEnds(h, m.ask(ctx, h, mounted, how)) }); left != nil {
		m.figures.leave(h)
	}
}

func (m *Manager) figureEnds(h podvolume.Key, got measurement) {
	m.figures.end(h, got)
	m.measured.Notify(h.Pod)
}

// ask measures a volume and asks for its health.
func (m *Manager) ask(ctx context.Context, h podvolume.Key, mounted cache.MountedVolume, how manner) (got measurement) {
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	if how == probed {
		_, got.err = volume.NewMetricsStatFS(mounted.MountPath).GetMetrics(ctx)
	} else {
		got.metrics, got.err = m.askMetrics(ctx, mounted)
	}
	var now []Condition
	if c, bad := conditionOf(got.err); bad {
		now = append(now, c)
	}
	m.report(h, sourceUse, now)
	m.askHealth(ctx, h, mounted)
	if own := m.mounts.get(mounted.MountPath); own != nil {
		m.suspects.Add(mounted.MountPath) // for what the kernel says of it
		m.suspectFilesystem(own)
	}
	return got
}

// askMetrics asks the plugin, or, when that cannot measure the volume and it is a mount, whether its filesystem answers.
func (m *Manager) askMetrics(ctx context.Context, mounted cache.MountedVolume) (*volume.Metrics, error) {
	provider := providerOf(mounted)
	if provider == nil {
		return nil, fmt.Errorf("volume %q: %w", mounted.VolumeName, volume.ErrUnsupported)
	}
	metrics, err := guardedCall(mounted.PluginName, "GetMetrics", func() (*volume.Metrics, error) { return provider.GetMetrics(ctx) })
	err = m.secretsOf(mounted).Redact(err)
	if !errors.Is(err, volume.ErrUnsupported) || m.mounts.get(mounted.MountPath) == nil {
		return metrics, err
	}
	if _, probeErr := volume.NewMetricsStatFS(mounted.MountPath).GetMetrics(ctx); probeErr != nil {
		return nil, probeErr
	}
	return nil, err
}

// secretsOf returns what the plugin was given with a volume and must not tell.
func (m *Manager) secretsOf(mounted cache.MountedVolume) volume.Secrets {
	return mounted.VolumeSpec.Secrets(m.plugins.PublicKeys(mounted.PluginName))
}

func providerOf(mounted cache.MountedVolume) volume.MetricsProvider {
	switch {
	case mounted.Mounter != nil:
		return pluginsOwn(mounted.Mounter)
	case mounted.BlockVolumeMapper != nil:
		provider, _ := mounted.BlockVolumeMapper.(volume.MetricsProvider)
		return provider
	}
	return nil
}

// askHealth asks a plugin that reports the health of its volumes. What it cannot say changes nothing.
func (m *Manager) askHealth(ctx context.Context, h podvolume.Key, mounted cache.MountedVolume) {
	reporter, ok := providerOf(mounted).(volume.HealthReporter)
	if !ok {
		return
	}
	found, err := guardedCall(mounted.PluginName, "GetHealth", func() ([]volume.HealthCondition, error) { return reporter.GetHealth(ctx) })
	secrets := m.secretsOf(mounted)
	if err = secrets.Redact(err); err != nil {
		m.options.Logger.Warn("the health of a volume could not be asked for", "volume", h.Volume, "pod", h.Pod, "error", err)
		return
	}
	var now []Condition
	for _, c := range found {
		if c.Status != volume.HealthNormal {
			c.Message = secrets.RedactText(c.Message)
			now = append(now, Condition{HealthCondition: c})
		}
	}
	m.report(h, sourcePlugin, now)
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

// unreachable are the errors of a filesystem or a device that nobody serves any more.
var unreachable = []error{
	syscall.ENOTCONN, syscall.ECONNABORTED, syscall.ESTALE, syscall.EIO, syscall.ENODEV, syscall.ENXIO, syscall.EHOSTDOWN, syscall.ETIMEDOUT,
}

// conditionOf says what an error of a measurement says of the volume's health.
func conditionOf(err error) (Condition, bool) {
	for _, reason := range unreachable {
		if errors.Is(err, reason) {
			return abnormal(ReasonUnreachable, fmt.Errorf("its storage does not serve it: %w", err)), true
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return abnormal(ReasonHung, fmt.Errorf("a measurement of it does not return: %w", err)), true
	}
	return Condition{}, false
}
