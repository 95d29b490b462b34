package persistentvolume

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/lostcall"
	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// callGrace is how long a call of a plugin may take to return after its context has ended, before it is left behind.
const callGrace = 5 * time.Second

// pluginCall names one call of a plugin.
type pluginCall struct {
	plugin, method, volume string
	// atLeast is how long the call may take where that is longer than others may.
	atLeast time.Duration
	// secrets are what the plugin is given and must not tell.
	secrets volume.Secrets
}

// String names the call in errors.
func (p pluginCall) String() string {
	return fmt.Sprintf("%s of volume %q by plugin %q", p.method, p.volume, p.plugin)
}

// call runs f, which calls a plugin, with a deadline. A panic, runtime.Goexit and an error that cannot be read are
// uncertain errors. A call that does not return although its context has ended is left behind: the error is then
// uncertain too, and says when the call is over after all.
func (c *Controller) call(ctx context.Context, name pluginCall, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, max(c.options.CallTimeout, name.atLeast))
	defer cancel()
	var result error
	left := lostcall.Await(ctx, callGrace, func() { guard(name, &result, func() error { return f(ctx) }) })
	if left == nil {
		return result
	}
	c.lost.add(name, left)
	return outcome.NewLostError(name.String(), "", context.Cause(ctx), left)
}

// guard calls f and puts its error into result, whatever f does.
func guard(name pluginCall, result *error, f func() error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		value := recover()
		if value == nil {
			value = operationexecutor.ErrGoexit
		}
		value = name.secrets.RedactPanic(value)
		*result = volume.Uncertain(&volume.PanicError{Plugin: name.plugin, Call: name.method, Value: value, Stack: debug.Stack()})
	}()
	err := f()
	if err != nil {
		_, _, _ = err.Error(), outcome.ClassOf(err), outcome.Running(err) // All that will be read of it.
	}
	*result = name.secrets.Redact(err)
	returned = true
}

// callError is a plugin's failure to serve the object of uid. It is not tried again before its back-off is over, whatever
// happens to the object.
type callError struct {
	uid types.UID
	err error
}

func (e *callError) Error() string { return e.err.Error() }
func (e *callError) Unwrap() error { return e.err }

// LostCallsError names the calls of plugins that were still running when Run returned.
type LostCallsError struct {
	// Calls are the calls, each as "Provision of volume \"pvc-1\" by plugin \"example.com/ram\"".
	Calls []string
}

// Error names all calls.
func (e *LostCallsError) Error() string {
	return "left behind, since they do not return: " + strings.Join(e.Calls, "; ")
}

// lostCalls are the calls that were left behind.
type lostCalls struct {
	mu    sync.Mutex
	calls map[<-chan struct{}]pluginCall
}

func newLostCalls() *lostCalls { return &lostCalls{calls: map[<-chan struct{}]pluginCall{}} }

func (l *lostCalls) add(call pluginCall, done <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for over := range l.calls {
		if ended(over) {
			delete(l.calls, over)
		}
	}
	l.calls[done] = call
}

// error returns a [*LostCallsError], or nil when all calls are over.
func (l *lostCalls) error() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var names []string
	for done, call := range l.calls {
		if !ended(done) {
			names = append(names, call.String())
		}
	}
	if names == nil {
		return nil
	}
	return &LostCallsError{Calls: names}
}

func ended(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
