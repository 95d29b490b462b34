package capacity

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/volume"
)

// callGrace is the time that a call has after the end of its context. Then it is abandoned.
const callGrace = 5 * time.Second

// errStillRuns says that the plugin cannot be called, because an abandoned call of it has not returned.
var errStillRuns = errors.New("an earlier call has not returned")

// calls calls a plugin. Only one goroutine uses it.
type calls struct {
	left <-chan struct{} // closed when the abandoned call returns; the controller or the plugin abandoned it
}

// capacity calls GetCapacity with a deadline. It abandons a call that does not return after its context has ended.
func (c *calls) capacity(
	ctx context.Context, plugin volume.VolumePluginWithCapacity, options volume.CapacityOptions, timeout time.Duration,
) (volume.Capacity, error) {
	if c.left != nil {
		select {
		case <-c.left:
			c.left = nil
		default:
			return volume.Capacity{}, volume.Transient(errStillRuns)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var result answer
	if left := abandonable.Await(ctx, callGrace, func() { result.of(ctx, plugin, options) }); left != nil {
		c.left = left
		return volume.Capacity{}, outcome.NewAbandonedError("GetCapacity by plugin "+plugin.GetPluginName(), "", context.Cause(ctx), left)
	}
	if result.err != nil {
		c.left = outcome.DoneOf(result.err) // The plugin may have returned, and have abandoned a call of its own.
		return volume.Capacity{}, result.err
	}
	return result.capacity, result.check()
}

// answer is the answer of a plugin.
type answer struct {
	capacity volume.Capacity
	err      error
}

// of calls the plugin. A panic is an error.
func (a *answer) of(ctx context.Context, plugin volume.VolumePluginWithCapacity, options volume.CapacityOptions) {
	a.err = errors.New("the plugin has ended its goroutine")
	defer func() {
		if value := recover(); value != nil {
			a.err = &volume.PanicError{Plugin: plugin.GetPluginName(), Call: "GetCapacity", Value: value, Stack: debug.Stack()}
		}
	}()
	a.capacity, a.err = plugin.GetCapacity(ctx, options)
}

// check refuses an invalid capacity.
func (a *answer) check() error {
	for _, q := range []*resource.Quantity{a.capacity.Available, a.capacity.MaximumVolumeSize} {
		if q != nil && q.Sign() < 0 {
			return fmt.Errorf("the plugin says %s bytes, and there can be no negative capacity: %w", q, volume.ErrInvalid)
		}
	}
	return nil
}
