package populator

import (
	"context"
	"errors"
	"fmt"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/retry"
)

// ErrPluginAwaited matches what keeps a pod from a volume that no plugin serves, where Options.Prober may tell of one. The
// pod is looked at again when it does.
var ErrPluginAwaited = errors.New("no plugin serves the volume yet")

// awaitPlugin turns the mistake that no plugin serves a volume into a wait, where plugins may come.
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

// pluginsChanged has everything looked at again that depends on plugins which have come, changed or gone. The volumes of
// one that is gone stay known; what is to be done to them waits for it.
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
