package operationexecutor

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// WaitError says what was left when [Executor.Wait] returned.
type WaitError struct {
	// Running are the operations that had not ended when the context did; empty when all have.
	Running []OperationInfo
	// Left are the operations that have ended and of which a call of the plugin still runs.
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
		parts = append(parts, "left behind a call that still runs: "+describe(e.Left))
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

// Wait returns when no operation runs, or when ctx ends. The error is a [*WaitError] when ctx ended first, and also when
// calls that were left behind still run: those are named and not waited for. Begin nothing after Wait was called.
func (e *Executor) Wait(ctx context.Context) error {
	for {
		running, left, changed := e.snapshot()
		if len(running) == 0 {
			if len(left) == 0 {
				return nil
			}
			return &WaitError{Left: left}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return &WaitError{Running: running, Left: left, Err: context.Cause(ctx)}
		}
	}
}

func (e *Executor) snapshot() (running, left []OperationInfo, changed <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return infosOf(e.running), infosOf(e.left), e.changed
}

// infosOf returns the operations in the order in which they began.
func infosOf(ops map[*Operation]struct{}) []OperationInfo {
	infos := make([]OperationInfo, 0, len(ops))
	for op := range ops {
		infos = append(infos, op.Info())
	}
	slices.SortFunc(infos, func(a, b OperationInfo) int { return a.Started.Compare(b.Started) })
	return infos
}
