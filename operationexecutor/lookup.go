package operationexecutor

import (
	"context"
	"errors"
	"fmt"

	"github.com/volumekit/volumekit/volume"
)

// errNotCalled matches the error of a call that was never made, because ctx ended before a worker was free.
var errNotCalled = errors.New("the plugin was not called")

func notCalled(err error) bool { return errors.Is(err, errNotCalled) }

// pluginName returns the name of the plugin, as far as it is known.
func (x *execution) pluginName() string { return x.op.Info().PluginName }

// find looks a plugin up and makes its name known.
func find[T volume.VolumePlugin](ctx context.Context, x *execution, f func() (T, error)) (T, error) {
	type found struct {
		plugin T
		name   string
	}
	p, err := perform(ctx, x, x.asking("FindPlugin"), func(context.Context) (found, error) {
		plugin, err := f()
		if err != nil {
			return found{}, err
		}
		return found{plugin: plugin, name: plugin.GetPluginName()}, nil
	})
	if err == nil {
		x.op.setPlugin(p.name)
	}
	return p.plugin, err
}

// construct calls a method of the plugin that does no I/O and returns something; nil is refused.
func construct[T any](ctx context.Context, x *execution, name string, f func() (T, error)) (T, error) {
	return perform(ctx, x, x.asking(name), func(context.Context) (T, error) {
		value, err := f()
		if err == nil && any(value) == nil {
			err = fmt.Errorf("%s of plugin %q returned neither a value nor an error: %w", name, x.pluginName(), volume.ErrInvalid)
		}
		return value, err
	})
}
