// Package call calls plugins with a deadline, and keeps track of abandoned calls.
package call

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// grace is the time that a call has after the end of its context. Then it is abandoned.
const grace = 5 * time.Second

// Call names one call of a plugin.
type Call struct {
	// Plugin and Method name the call, Object the object of the call: volume "a", snapshot "b".
	Plugin, Method, Object string
	// AtLeast is the deadline of this call if it is longer than that of other calls.
	AtLeast time.Duration
	// Secrets are the secrets that the plugin gets. They must not appear in its errors.
	Secrets volume.Secrets
}

// String names the call in errors.
func (c Call) String() string {
	return fmt.Sprintf("%s of %s by plugin %q", c.Method, c.Object, c.Plugin)
}

// Calls calls plugins, and keeps track of abandoned calls. Make it with [New]. Its methods may be called from several
// goroutines at once.
type Calls struct {
	timeout time.Duration

	mu        sync.Mutex
	abandoned map[<-chan struct{}]Call
}

// New returns Calls with a deadline of timeout, unless a call sets another.
func New(timeout time.Duration) *Calls {
	return &Calls{timeout: timeout, abandoned: map[<-chan struct{}]Call{}}
}

// Do runs f, which calls a plugin, with a deadline. A panic, runtime.Goexit and an unreadable error are uncertain
// errors. Do abandons a call that does not return after its context has ended: the error is then uncertain too, and
// reports when the call has returned.
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

// guard calls f and sets result to its error, however f ends.
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
		_, _, _ = err.Error(), outcome.ClassOf(err), outcome.Running(err) // The whole text that anything reads of it.
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

// AbandonedError names the calls of plugins that were still running when a controller ended.
type AbandonedError struct {
	// Calls are the calls, each as "Provision of volume \"pvc-1\" by plugin \"example.com/ram\"".
	Calls []string
}

// Abandoned returns an [*AbandonedError] with calls, and nil if there are none.
func Abandoned(calls []string) error {
	if len(calls) == 0 {
		return nil
	}
	return &AbandonedError{Calls: calls}
}

// Error names all calls.
func (e *AbandonedError) Error() string {
	return "abandoned, because they do not return: " + strings.Join(e.Calls, "; ")
}
