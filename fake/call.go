package fake

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Call is one call of a plugin's method.
type Call struct {
	// Method is what was called.
	Method Method
	// Volume is the volume's name: the inner name of its spec where there is one, else what the plugin was given.
	Volume string
	// Pod is the UID of the pod; empty when no pod is concerned.
	Pod types.UID
	// Node is the node; empty when no node is concerned.
	Node types.NodeName
	// Path is the absolute path that the call works on; empty when there is none.
	Path string
	// Ended is true when the call has returned or panicked.
	Ended bool
	// Err is what it returned; nil until it has ended, and when it panicked.
	Err error
}

// String returns the call in one clause, such as `SetUp "data" for pod-1`, with what became of it.
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

// callLog keeps calls in the order in which they began, and the faults that wait for the next ones.
type callLog struct {
	mu     sync.Mutex
	calls  []Call
	faults map[Method]*faultQueue
	// changed is closed and replaced whenever a call begins.
	changed chan struct{}
}

func newCallLog() *callLog {
	return &callLog{faults: map[Method]*faultQueue{}, changed: make(chan struct{})}
}

func (l *callLog) inject(method Method, faults []Fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.faults[method] == nil {
		l.faults[method] = &faultQueue{}
	}
	*l.faults[method] = append(*l.faults[method], faults...)
}

// run logs the call and does work, or what the next fault says. No lock is held while it does.
func (l *callLog) run(ctx context.Context, call Call, work func() error) (err error) {
	index, fault, faulty := l.begin(call)
	defer func() { l.end(index, err) }()
	if !faulty {
		return work()
	}
	return fault.run(ctx, work)
}

// note logs a call that has no context and no work: the next fault can make it fail or panic, but not wait.
func (l *callLog) note(call Call) (err error) {
	index, fault, _ := l.begin(call)
	defer func() { l.end(index, err) }()
	if fault.Panic != nil {
		panic(fault.Panic)
	}
	return fault.Err
}

func (l *callLog) begin(call Call) (int, Fault, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, call)
	close(l.changed)
	l.changed = make(chan struct{})
	if q := l.faults[call.Method]; q != nil {
		fault, ok := q.next()
		return len(l.calls) - 1, fault, ok
	}
	return len(l.calls) - 1, Fault{}, false
}

func (l *callLog) end(index int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls[index].Ended, l.calls[index].Err = true, err
}

func (l *callLog) snapshot() []Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.calls)
}

// await returns when at least n calls of method have begun.
func (l *callLog) await(ctx context.Context, method Method, n int) error {
	for {
		begun, changed := l.count(method)
		if begun >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for call %d of %s, %d began: %w", n, method, begun, context.Cause(ctx))
		}
	}
}

func (l *callLog) count(method Method) (int, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, c := range l.calls {
		if c.Method == method {
			n++
		}
	}
	return n, l.changed
}
