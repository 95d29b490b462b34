package fake

import (
	"context"
	"fmt"
	"sync"
)

// loggable is a call that a log can keep.
type loggable[C any] interface {
	*C
	method() Method
	end(err error)
}

// callLog keeps calls in the order in which they began, and the faults that wait for the next ones. Its zero value is
// empty and ready. A call in it is changed under its lock alone.
type callLog[C any, P loggable[C]] struct {
	mu     sync.Mutex
	calls  []P
	faults map[Method]*faultQueue
	// changed closes, and becomes nil, when a call begins. It is nil unless a caller waits.
	changed chan struct{}
}

func (l *callLog[C, P]) inject(method Method, faults []Fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.faults == nil {
		l.faults = map[Method]*faultQueue{}
	}
	if l.faults[method] == nil {
		l.faults[method] = &faultQueue{}
	}
	*l.faults[method] = append(*l.faults[method], faults...)
}

// begin logs a call and takes the next fault of its method, if there is one.
func (l *callLog[C, P]) begin(call C) (P, Fault, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	logged := P(&call)
	l.append(logged)
	q := l.faults[logged.method()]
	if q == nil {
		return logged, Fault{}, false
	}
	fault, ok := q.next()
	return logged, fault, ok
}

func (l *callLog[C, P]) end(call P, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	call.end(err)
}

// refuse logs a call that is malformed, which no fault can change.
func (l *callLog[C, P]) refuse(call C, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	logged := P(&call)
	logged.end(err)
	l.append(logged)
	return err
}

// append adds a call and wakes those who wait. The log is locked.
func (l *callLog[C, P]) append(call P) {
	l.calls = append(l.calls, call)
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// await returns when at least n calls of method have begun.
func (l *callLog[C, P]) await(ctx context.Context, method Method, n int) error {
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

// count returns how many calls of method have begun, and what is closed when the next call of any begins.
func (l *callLog[C, P]) count(method Method) (begun int, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, call := range l.calls {
		if call.method() == method {
			begun++
		}
	}
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return begun, l.changed
}

func (l *callLog[C, P]) snapshot() []C {
	l.mu.Lock()
	defer l.mu.Unlock()
	calls := make([]C, len(l.calls))
	for i, call := range l.calls {
		calls[i] = *call
	}
	return calls
}

func (l *callLog[C, P]) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = nil
}
