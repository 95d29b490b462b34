package fake

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Call is one call of a plugin's method.
type Call struct {
	// Method is what was called.
	Method Method
	// Volume is the volume's name: the inner name of its spec if the call has a spec, else the name that the plugin was
	// given.
	Volume string
	// Pod is the UID of the pod; empty if the call is for no pod.
	Pod types.UID
	// Node is the node; empty if the call is for no node.
	Node types.NodeName
	// Path is the absolute path that the call works on; empty when there is none.
	Path string
	// Ended is true when the call has returned or panicked.
	Ended bool
	// Err is the error that the call returned. It is nil before the end, and after a panic.
	Err error
}

// String returns the call and its result in one clause, such as `SetUp "data" for pod-1`.
func (c Call) String() string {
	var b strings.Builder
	b.WriteString(string(c.Method))
	if c.Volume != "" {
		fmt.Fprintf(&b, " %q", c.Volume)
	}
	if c.Pod != "" {
		fmt.Fprintf(&b, " for %s", c.Pod)
	}
	if c.Node != "" {
		fmt.Fprintf(&b, " on %s", c.Node)
	}
	switch {
	case !c.Ended:
		b.WriteString(" (running)")
	case c.Err != nil:
		fmt.Fprintf(&b, ": %v", c.Err)
	}
	return b.String()
}

func (c *Call) method() Method { return c.Method }

func (c *Call) end(err error) { c.Ended, c.Err = true, err }

// pluginLog is the log of a [Plugin], and applies its faults to the calls.
type pluginLog struct{ callLog[Call, *Call] }

// run logs the call and does work, as the next fault changes it. No lock is held during work.
func (l *pluginLog) run(ctx context.Context, call Call, work func() error) (err error) {
	logged, fault, faulty := l.begin(call)
	defer func() { l.end(logged, err) }()
	if !faulty {
		return work()
	}
	return fault.run(ctx, work)
}

// note logs a call without context and work. The next fault can make it fail or panic, but not wait.
func (l *pluginLog) note(call Call) (err error) {
	logged, fault, _ := l.begin(call)
	defer func() { l.end(logged, err) }()
	if fault.Panic != nil {
		panic(fault.Panic)
	}
	return fault.Err
}
