package operationexecutor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// WaitError names the operations and calls that still ran when [Executor.Wait] returned.
type WaitError struct {
	// Running are the operations that ran when the context ended; empty if all had ended.
	Running []OperationInfo
	// Abandoned are the operations that have ended although a call of the plugin still runs.
	Abandoned []OperationInfo
	// Err is the context's error if the context ended the wait, else nil.
	Err error
}

// Error names each operation.
func (e *WaitError) Error() string {
	var parts []string
	if len(e.Running) > 0 {
		parts = append(parts, "not ended: "+describe(e.Running))
	}
	if len(e.Abandoned) > 0 {
		parts = append(parts, "abandoned a call that still runs: "+describe(e.Abandoned))
	}
	if e.Err != nil {
		parts = append(parts, e.Err.Error())
	}
	return "waiting for volume operations: " + strings.Join(parts, "; ")
}

// Unwrap returns the context's error, or nil.
func (e *WaitError) Unwrap() error { return e.Err }

func describe(infos []OperationInfo) string {
	names := make([]string, 0, len(infos))
	for _, i := range infos {
		names = append(names, fmt.Sprintf("%s of volume %q", i.Kind, i.VolumeName))
	}
	return strings.Join(names, ", ")
}

// ErrShutDown matches the error of an operation that did not begin because [Executor.Shutdown] had been called.
var ErrShutDown = errors.New("the operation executor was shut down")

// Shutdown refuses new operations with [ErrShutDown], and then waits for the running ones like [Executor.Wait]. It cancels
// nothing: to cancel operations, end their contexts. The caller may call it again to wait longer.
func (e *Executor) Shutdown(ctx context.Context) error {
	e.mu.Lock()
	e.isShutDown = true
	e.mu.Unlock()
	return e.Wait(ctx)
}

// Wait returns when no operation runs, or when ctx ends. It returns a [*WaitError] if ctx ended first, and also if abandoned
// calls still run: it names those calls and does not wait for them. Other operations may begin meanwhile.
func (e *Executor) Wait(ctx context.Context) error {
	var err error
	if quiet := e.whenIdle(); quiet != nil {
		select {
		case <-quiet:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	e.calls.StopIdleTimer()
	running, abandoned := e.unfinished()
	switch {
	case err != nil && len(running) > 0:
		return &WaitError{Running: running, Abandoned: abandoned, Err: err}
	case len(abandoned) > 0:
		return &WaitError{Abandoned: abandoned}
	}
	return nil
}

// whenIdle returns a channel that is closed when no operation runs; nil when none does.
func (e *Executor) whenIdle() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.running) > 0 && e.idle == nil {
		e.idle = make(chan struct{})
	}
	return e.idle
}

// unfinished returns the running operations, and those that have ended although a call still runs. Both are in the order in
// which the operations began.
func (e *Executor) unfinished() (running, abandoned []OperationInfo) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for op := range e.running {
		running = append(running, op.Info())
	}
	for op := range e.abandoned {
		abandoned = append(abandoned, op.Info())
	}
	return inOrder(running), inOrder(abandoned)
}

func inOrder(infos []OperationInfo) []OperationInfo {
	slices.SortFunc(infos, func(a, b OperationInfo) int { return a.Started.Compare(b.Started) })
	return infos
}
