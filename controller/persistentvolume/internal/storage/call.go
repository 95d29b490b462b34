package storage

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// callGrace is how long a call of a plugin may take to return after its context has ended, before it is abandoned.
const callGrace = 5 * time.Second

// pluginCall names one call of a plugin.
type pluginCall struct {
	plugin, method, volume string
	// atLeast is how long the call may take where that is longer than others may.
	atLeast time.Duration
	// secrets are what the plugin is given and must not repeat.
	secrets volume.Secrets
}

// String names the call in errors.
func (p pluginCall) String() string {
	return fmt.Sprintf("%s of volume %q by plugin %q", p.method, p.volume, p.plugin)
}

// calls calls plugins, and knows the calls that were abandoned. Its methods may be called from several goroutines at once.
type calls struct {
	timeout time.Duration

	mu        sync.Mutex
	abandoned map[<-chan struct{}]pluginCall
}

func newCalls(timeout time.Duration) *calls {
	return &calls{timeout: timeout, abandoned: map[<-chan struct{}]pluginCall{}}
}

// do runs f, which calls a plugin, with a deadline. A panic, runtime.Goexit and an error that cannot be read are uncertain errors. A
// call that does not return although its context has ended is abandoned: the error is then uncertain too, and reports the end of the
// call.
func (c *calls) do(ctx context.Context, call pluginCall, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, max(c.timeout, call.atLeast))
	defer cancel()
	var result error
	left := abandonable.Await(ctx, callGrace, func() { guard(call, &result, func() error { return f(ctx) }) })
	if left == nil {
		return result
	}
	c.abandon(call, left)
	return outcome.NewAbandonedError(call.String(), "", context.Cause(ctx), left)
}

// guard calls f and puts its error into result, whatever f does.
func guard(call pluginCall, result *error, f func() error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		value := recover()
		if value == nil {
			value = operationexecutor.ErrGoexit
		}
		value = call.secrets.RedactPanic(value)
		*result = volume.Uncertain(&volume.PanicError{Plugin: call.plugin, Call: call.method, Value: value, Stack: debug.Stack()})
	}()
	err := f()
	if err != nil {
		_, _, _ = err.Error(), outcome.ClassOf(err), outcome.Running(err) // All that will be read of it.
	}
	*result = call.secrets.Redact(err)
	returned = true
}

func (c *calls) abandon(call pluginCall, done <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for over := range c.abandoned {
		if ended(over) {
			delete(c.abandoned, over)
		}
	}
	c.abandoned[done] = call
}

// running returns the names of the abandoned calls that still run.
func (c *calls) running() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for done, call := range c.abandoned {
		if !ended(done) {
			names = append(names, call.String())
		}
	}
	return names
}

func ended(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
