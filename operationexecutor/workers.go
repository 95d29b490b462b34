package operationexecutor

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/volumekit/volumekit/volume"
)

// slowAfter is how long a call keeps its worker. A call that takes longer waits for something, and another call may
// have its worker.
const slowAfter = 10 * time.Second

// workers bounds the calls of one plugin: those that run, and those that hang.
type workers struct {
	name     string
	hungMost int64
	hung     atomic.Int64  // calls that were abandoned and have not returned
	slow     atomic.Int64  // calls that have given their worker back and have not ended
	employed chan struct{} // a token for each call that has a worker. Nil if the plugin is not known: no limit.
}

// workersOf returns the workers of a plugin, and makes them at the first call. Each plugin has its own.
func (e *Executor) workersOf(plugin string) *workers {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := e.workers[plugin]
	if w == nil {
		w = &workers{name: plugin, hungMost: int64(e.options.HungPerPlugin)}
		if plugin != "" {
			w.employed = make(chan struct{}, e.options.WorkersPerPlugin)
		}
		e.workers[plugin] = w
	}
	return w
}

// acquire waits for a worker. The error says why there is none.
func (w *workers) acquire(ctx context.Context) error {
	if err := w.mayCall(ctx); err != nil || w.employed == nil {
		return err
	}
	select {
	case w.employed <- struct{}{}:
		return nil
	default:
	}
	select {
	case w.employed <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("no worker of plugin %q became free: %w", w.name, context.Cause(ctx))
	}
}

// mayCall returns why no call may begin now.
func (w *workers) mayCall(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if hung := w.hung.Load(); hung >= w.hungMost {
		return &PluginHungError{Plugin: w.name, Hung: int(hung)}
	}
	return nil
}

func (w *workers) release() {
	if w.employed != nil {
		<-w.employed
	}
}

// mayGiveBack reports whether a slow call may give its worker to another one.
func (w *workers) mayGiveBack() bool { return w.hung.Load()+w.slow.Load() < w.hungMost }

// PluginHungError says that the executor did not make a call, because too many abandoned calls of the plugin still run. It
// matches volume.ErrTransient: those calls may return.
type PluginHungError struct {
	// Plugin is the plugin's name. It is empty for the search for a plugin, which calls all of them.
	Plugin string
	// Hung is how many of the plugin's calls hang.
	Hung int
}

// Error names the plugin and says where to look.
func (e *PluginHungError) Error() string {
	who := fmt.Sprintf("plugin %q", e.Plugin)
	if e.Plugin == "" {
		who = "plugins"
	}
	return fmt.Sprintf("%d calls of %s hang, and no more are made until one returns: see what they wait for (Executor.Hung)", e.Hung, who)
}

// Is reports whether target is volume.ErrTransient.
func (e *PluginHungError) Is(target error) bool { return target == volume.ErrTransient }
