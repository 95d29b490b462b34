package fake

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// MountCall is one call of a [Mounter].
type MountCall struct {
	// Method is what was called.
	Method Method
	// Source and FSType are those of a Mount.
	Source, FSType string
	// Path is the absolute path that the call is about; empty for List.
	Path string
	// Options are those of a Mount, without the sensitive ones.
	Options []string
	// Ended is true when the caller has its answer.
	Ended bool
	// Err is that answer.
	Err error
}

// String returns the call in one line that can be compared, such as `Mount /a at /b (bind,ro)` or
// `Unmount /b: not mounted`.
func (c MountCall) String() string {
	var b strings.Builder
	b.WriteString(string(c.Method))
	for _, word := range []string{c.FSType, c.Source} {
		if word != "" {
			b.WriteString(" " + word)
		}
	}
	if c.Method == MethodMount {
		b.WriteString(" at")
	}
	if c.Path != "" {
		b.WriteString(" " + c.Path)
	}
	if len(c.Options) > 0 {
		b.WriteString(" (" + strings.Join(c.Options, ",") + ")")
	}
	switch {
	case !c.Ended:
		b.WriteString(" (running)")
	case c.Err != nil:
		fmt.Fprintf(&b, ": %v", c.Err)
	}
	return b.String()
}

// mountLog keeps the calls in the order in which they began, and the faults that wait for the next ones.
type mountLog struct {
	mu     sync.Mutex
	calls  []*MountCall
	faults map[Method]*faultQueue
	// changed is closed and replaced whenever a call begins.
	changed chan struct{}
}

func (l *mountLog) inject(method Method, faults []Fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.faults[method] == nil {
		l.faults[method] = &faultQueue{}
	}
	*l.faults[method] = append(*l.faults[method], faults...)
}

func (l *mountLog) begin(call MountCall) (*MountCall, Fault, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.append(&call)
	if q := l.faults[call.Method]; q != nil {
		fault, ok := q.next()
		return &call, fault, ok
	}
	return &call, Fault{}, false
}

func (l *mountLog) end(call *MountCall, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	call.Ended, call.Err = true, err
}

// refuse logs a call that is malformed, which no fault can change.
func (l *mountLog) refuse(call MountCall, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	call.Ended, call.Err = true, err
	l.append(&call)
	return err
}

// append adds a call. The log is locked.
func (l *mountLog) append(call *MountCall) {
	l.calls = append(l.calls, call)
	close(l.changed)
	l.changed = make(chan struct{})
}

// await returns when at least n calls of method have begun.
func (l *mountLog) await(ctx context.Context, method Method, n int) error {
	for {
		begun, changed := l.count(method)
		if begun >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for call %d of %s, %d began: %w", n, method, begun, ctx.Err())
		}
	}
}

func (l *mountLog) count(method Method) (begun int, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, call := range l.calls {
		if call.Method == method {
			begun++
		}
	}
	return begun, l.changed
}

func (l *mountLog) snapshot() []MountCall {
	l.mu.Lock()
	defer l.mu.Unlock()
	calls := make([]MountCall, len(l.calls))
	for i, call := range l.calls {
		calls[i] = *call
		calls[i].Options = slices.Clone(call.Options)
	}
	return calls
}

func (l *mountLog) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = nil
}
