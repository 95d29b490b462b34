package operationexecutor

import (
	"fmt"
	"slices"
	"time"
)

// HungCall is a call of a plugin that was abandoned and still runs. Its key stays locked until it returns.
type HungCall struct {
	// Operation is the operation that made the call. It may have ended.
	Operation OperationInfo
	// Call is the method.
	Call string
	// Since is when it began.
	Since time.Time

	call *pluginCall // nil when the plugin abandoned the call
}

// String names the call, its operation and its start.
func (h HungCall) String() string {
	return fmt.Sprintf("%s of plugin %q for %s of volume %q since %s",
		h.Call, h.Operation.PluginName, h.Operation.Kind, h.Operation.VolumeName, h.Since.Format(time.RFC3339))
}

// Stack returns the stack of the goroutine in which the call hangs, as runtime.Stack writes it. It is empty after the call
// has returned, and for a call that the plugin abandoned, because only the plugin knows its goroutine. Reading it stops all
// goroutines for a moment.
func (h HungCall) Stack() string {
	if h.call == nil {
		return ""
	}
	return h.call.Stack()
}

// Hung returns the calls of plugins that were abandoned and still run, the oldest first. This executor abandons a call that
// has not returned a grace after its deadline. Plugins report the calls that they abandoned themselves.
func (e *Executor) Hung() []HungCall {
	var calls []HungCall
	for _, owner := range e.calls.Hung() {
		if c, ok := owner.(*pluginCall); ok {
			calls = append(calls, HungCall{Operation: c.op.Info(), Call: c.name, Since: c.Started, call: c})
		}
	}
	calls = append(calls, e.abandonedByPlugins()...)
	slices.SortFunc(calls, func(a, b HungCall) int { return a.Since.Compare(b.Since) })
	return calls
}

// abandonedByPlugins returns the calls that plugins abandoned and that still run.
func (e *Executor) abandonedByPlugins() []HungCall {
	e.mu.Lock()
	defer e.mu.Unlock()
	var calls []HungCall
	for op, left := range e.abandoned {
		for _, call := range left {
			if !call.ours && !isClosed(call.done) {
				calls = append(calls, HungCall{Operation: op.Info(), Call: call.name, Since: call.started})
			}
		}
	}
	return calls
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
