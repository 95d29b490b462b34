package operationexecutor

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"
)

// HungCall is a call of a plugin that was left behind and still runs. Its key stays taken until it returns.
type HungCall struct {
	// Operation is the operation whose call it is; it may have ended.
	Operation OperationInfo
	// Call is the method.
	Call string
	// Since is when it began.
	Since time.Time

	flight *flight // nil when the plugin left the call behind
}

// String says which call hangs since when.
func (h HungCall) String() string {
	return fmt.Sprintf("%s of plugin %q for %s of volume %q since %s",
		h.Call, h.Operation.PluginName, h.Operation.Kind, h.Operation.VolumeName, h.Since.Format(time.RFC3339))
}

// Stack returns the stack of the goroutine in which the call hangs, as runtime.Stack writes it. It is empty when the call
// has returned, and when it is one that the plugin itself left behind, of which the plugin knows. All goroutines are
// stopped for a moment while it is read.
func (h HungCall) Stack() string {
	if h.flight == nil {
		return ""
	}
	// The frame of the flight's method fly has the flight as its first argument.
	frame := fmt.Sprintf(".(*flight).fly(%p", h.flight)
	for stack := range strings.SplitSeq(allStacks(), "\n\n") {
		if i := strings.Index(stack, frame); i >= 0 && strings.ContainsRune(",?)", rune(stack[i+len(frame)])) {
			return stack
		}
	}
	return ""
}

func allStacks() string {
	for buf := make([]byte, 1<<20); ; buf = make([]byte, 2*len(buf)) {
		if n := runtime.Stack(buf, true); n < len(buf) {
			return string(buf[:n])
		}
	}
}

// Hung returns the calls of plugins that were left behind and still run, the oldest first: those that this executor left
// behind because they had not returned a grace after their deadline, and those of which a plugin said so.
func (e *Executor) Hung() []HungCall {
	calls := e.hungCalls()
	slices.SortFunc(calls, func(a, b HungCall) int { return a.Since.Compare(b.Since) })
	return calls
}

func (e *Executor) hungCalls() []HungCall {
	e.mu.Lock()
	defer e.mu.Unlock()
	var calls []HungCall
	for f := range e.hung {
		calls = append(calls, HungCall{Operation: f.op.Info(), Call: f.call().name, Since: f.startedAt(), flight: f})
	}
	for op, left := range e.left {
		for _, call := range left {
			if call.flight == nil && !isClosed(call.done) {
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
