// Package call calls plugins, with a deadline, and knows the calls that were abandoned.
package call

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

// grace is how long a call of a plugin may take to return after its context has ended, before it is abandoned.
const grace = 5 * time.Second

// Call names one call of a plugin.
type Call struct {
	// Plugin and Method are what is called, Object is what it is called for: volume "a", snapshot "b".
	Plugin, Method, Object string
	// AtLeast is how long the call may take where that is longer than others may.
	AtLeast time.Duration
	// Secrets are what the plugin is given and must not repeat.
	Secrets volume.Secrets
}

// String names the call in errors.
func (c Call) String() string {
	return fmt.Sprintf("%s of %s by plugin %q", c.Method, c.Object, c.Plugin)
}

// Calls calls plugins, and knows the calls that were abandoned. Make it with [New]. Its methods may be called from several goroutines at once.
type Calls struct {
	timeout time.Duration

	mu        sync.Mutex
	abandoned map[<-chan struct{}]Call
}

// New returns Calls that last at most timeout, unless a call says otherwise.
func New(timeout time.Duration) *Calls {
	return &Calls{timeout: timeout, abandoned: map[<-chan struct{}]Call{}}
}

// Do runs f, which calls a plugin, with a deadline. A panic, runtime.Goexit and an error that cannot be read are uncertain errors. A
// call that does not return although its context has ended is abandoned: the error is then uncertain too, and reports the end of the
// call.
func (c *Calls) Do(ctx context.Context, call Call, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, max(c.timeout, call.AtLeast))
	defer cancel()
	var result error
	left := abandonable.Await(ctx, grace, func() { guard(call, &result, func() error { return f(ctx) }) })
	if left == nil {
		return result
	}
	c.abandon(call, left)
	return outcome.NewAbandonedError(call.String(), "", context.Cause(ctx), left)
}

// guard calls f and puts its error into result, whatever f does.
func guard(call Call, result *error, f func() error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		value := recover()
		if value == nil {
			value = operationexecutor.ErrGoexit
		}
		value = call.Secrets.RedactPanic(value)
		*result = volume.Uncertain(&volume.PanicError{Plugin: call.Plugin, Call: call.Method, Value: value, Stack: debug.Stack()})
	}()
	err := f()
	if err != nil {
		_, _, _ = err.Error(), outcome.ClassOf(err), outcome.Running(err) // All that will be read of it.
	}
	*result = call.Secrets.Redact(err)
	returned = true
}

func (c *Calls) abandon(call Call, done <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for over := range c.abandoned {
		if ended(over) {
			delete(c.abandoned, over)
		}
	}
	c.abandoned[done] = call
}

// Running returns the names of the abandoned calls that still run.
func (c *Calls) Running() []string {
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
