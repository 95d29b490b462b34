package operationexecutor

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/volumekit/volumekit/volume"
)

// pluginCalls bounds the calls of one plugin: those that run, and those that were left behind.
type pluginCalls struct {
	name string
	// workers holds a token for each call that runs. Nil: as many run as come, because it is not known yet whose they are.
	workers chan struct{}
	hung    atomic.Int64
	// slow are the calls that have given their worker back and have not returned. The executor's lock guards it.
	slow int
}

// acquire waits for a worker. The error says why there is none.
func (p *pluginCalls) acquire(ctx context.Context, hungAtMost int) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if p.tryAcquire(hungAtMost) {
		return nil
	}
	if n := int(p.hung.Load()); n >= hungAtMost {
		return &PluginHungError{Plugin: p.name, Hung: n}
	}
	select {
	case p.workers <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("no worker of plugin %q became free: %w", p.name, context.Cause(ctx))
	}
}

// tryAcquire takes a worker if there is one.
func (p *pluginCalls) tryAcquire(hungAtMost int) bool {
	if int(p.hung.Load()) >= hungAtMost {
		return false
	}
	if p.workers == nil {
		return true
	}
	select {
	case p.workers <- struct{}{}:
		return true
	default:
		return false
	}
}

func (p *pluginCalls) release() {
	if p.workers != nil {
		<-p.workers
	}
}

// PluginHungError says that a call was not made, because so many calls of its plugin were left behind and still run that
// no more are risked. It matches volume.ErrTransient: the calls that hang may return.
type PluginHungError struct {
	// Plugin is the plugin's name; empty for the search for a plugin, which asks all of them.
	Plugin string
	// Hung is how many of its calls hang.
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
