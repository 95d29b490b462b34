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
func (x *execution) pluginName() string { return x.op.pluginName() }

// found is a plugin that was looked up.
type found[T any] struct {
	plugin T
	name   string
}

// find looks a plugin up and makes its name known.
func find[T volume.VolumePlugin](ctx context.Context, x *execution, f func() (T, error)) (T, error) {
	p, err := construct(ctx, x, "FindPlugin", func() (found[T], error) {
		plugin, err := f()
		if err != nil {
			return found[T]{}, err
		}
		return found[T]{plugin: plugin, name: plugin.GetPluginName()}, nil
	})
	if q, ok := ctx.(*questions); ok {
		q.plugin = p.name
	} else if err == nil {
		x.op.setPlugin(p.name)
	}
	return p.plugin, err
}

// construct calls a method of the plugin that does no I/O and returns something; nil is refused.
func construct[T any](ctx context.Context, x *execution, name string, f func() (T, error)) (T, error) {
	q, ok := ctx.(*questions)
	if !ok {
		return perform(ctx, x, x.asking(name), func(context.Context) (T, error) { return something(x, name, f) })
	}
	if !q.next(name) {
		var none T
		return none, errNotCalled // Nobody reads it.
	}
	return something(x, name, f)
}

func something[T any](x *execution, name string, f func() (T, error)) (T, error) {
	value, err := f()
	if err == nil && any(value) == nil {
		err = fmt.Errorf("%s of plugin %q returned neither a value nor an error: %w", name, x.pluginName(), volume.ErrInvalid)
	}
	return value, err
}
