package populator

import (
	"context"
	"errors"
	"fmt"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/retry"
)

// ErrPluginAwaited matches the error of a volume without a plugin, if Options.Prober may add the plugin later. The pod
// is resolved again when it does.
var ErrPluginAwaited = errors.New("no plugin serves the volume yet")

// awaitPlugin turns the error that no plugin supports a volume into a wait, if a prober may add plugins.
func (r resolver) awaitPlugin(err error) error {
	if r.dynamic && errors.Is(err, volume.ErrNoPlugin) {
		return fmt.Errorf("%w: %w", ErrPluginAwaited, err)
	}
	return err
}

// probeAll adds and removes the plugins that the prober reports, until ctx ends. If the prober fails, it is called again
// after a pause.
func (p *Populator) probeAll(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; {
		changed, err := p.options.Plugins.Probe(ctx, p.options.Prober)
		p.pluginsChanged(changed)
		if err == nil || ctx.Err() != nil {
			failures = 0
			continue
		}
		failures++
		wait := retry.After(failures)
		p.options.Logger.Warn("plugins were probed with an error", "error", err, "retryAfter", wait)
		retry.Pause(ctx, wait)
	}
}

// pluginsChanged resolves and plans again everything that depends on added, changed or removed plugins. The volumes of
// a removed plugin stay known; their operations wait for it.
func (p *Populator) pluginsChanged(names []string) {
	if len(names) == 0 {
		return
	}
	p.Recheck()
	for _, name := range names {
		p.options.Desired.RefreshPlugin(name)
		volumes := p.options.Desired.GetVolumeNamesOfPlugin(name)
		for _, row := range p.options.Actual.GetVolumesOfPlugin(name) {
			volumes = append(volumes, row.VolumeName)
		}
		p.options.Retry(volumes)
	}
}
