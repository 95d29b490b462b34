package operationexecutor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// WaitError says what was left when [Executor.Wait] returned.
type WaitError struct {
	// Running are the operations that had not ended when the context did; empty when all have.
	Running []OperationInfo
	// Left are the operations that have ended although a call of the plugin still runs.
	Left []OperationInfo
	// Err is the context's error when it ended the wait, else nil.
	Err error
}

// Error names each operation.
func (e *WaitError) Error() string {
	var parts []string
	if len(e.Running) > 0 {
		parts = append(parts, "not ended: "+describe(e.Running))
	}
	if len(e.Left) > 0 {
		parts = append(parts, "abandoned a call that still runs: "+describe(e.Left))
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

// ErrShutDown matches the error of an operation that was not begun because [Executor.Shutdown] had been called.
var ErrShutDown = errors.New("the operation executor was shut down")

// Shutdown has no operation begin any more, and then does as [Executor.Wait] does: it drains. It cancels nothing; end the
// contexts of the operations for that. It may be called again, to wait longer.
func (e *Executor) Shutdown(ctx context.Context) error {
	e.mu.Lock()
	e.isShutDown = true
	e.mu.Unlock()
	return e.Wait(ctx)
}

// Wait returns when no operation runs, or when ctx ends. The error is a [*WaitError] when ctx ended first, and also when
// calls that were abandoned still run: those are named and not waited for. Other operations may begin meanwhile.
func (e *Executor) Wait(ctx context.Context) error {
	var err error
	if quiet := e.whenIdle(); quiet != nil {
		select {
		case <-quiet:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	e.calls.Rest()
	running, left := e.unfinished()
	switch {
	case err != nil && len(running) > 0:
		return &WaitError{Running: running, Left: left, Err: err}
	case len(left) > 0:
		return &WaitError{Left: left}
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

// unfinished returns the operations that run, and those that have ended although a call still runs, each in the order in
// which they began.
func (e *Executor) unfinished() (running, left []OperationInfo) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for op := range e.running {
		running = append(running, op.Info())
	}
	for op := range e.abandoned {
		left = append(left, op.Info())
	}
	return inOrder(running), inOrder(left)
}

func inOrder(infos []OperationInfo) []OperationInfo {
	slices.SortFunc(infos, func(a, b OperationInfo) int { return a.Started.Compare(b.Started) })
	return infos
}
