package operationexecutor

import (
	"time"

	"github.com/volumekit/volumekit/internal/outcome"
)

// This file keeps the keys of operations that have ended while calls of them still run.

// abandonedCall is a call that was abandoned.
type abandonedCall struct {
	name    string
	started time.Time
	done    <-chan struct{} // closed when it has really ended
	ours    bool            // this executor abandoned it; otherwise the plugin did, and the operation continued
}

// noteAbandoned notes the abandoned calls that err, the error of c, names.
func (x *execution) noteAbandoned(c *pluginCall, err error) {
	for _, done := range outcome.Running(err) {
		x.abandonedCalls = append(x.abandonedCalls, abandonedCall{name: c.name, started: c.Started, done: done, ours: c.Done() == done})
	}
}

// stillRunning returns the calls that were abandoned and have not ended.
func (x *execution) stillRunning() []abandonedCall {
	var running []abandonedCall
	for _, call := range x.abandonedCalls {
		if !isClosed(call.done) {
			running = append(running, call)
		}
	}
	return running
}

// keepLocked keeps the key of an operation locked until its abandoned calls have returned.
func (e *Executor) keepLocked(op *Operation, left []abandonedCall) {
	e.mu.Lock()
	e.abandoned[op] = left
	e.awaited++
	e.mu.Unlock()
	op.close()
	e.options.Logger.Warn("a call of a plugin was abandoned; its key stays taken", logKeys(op.Info())...)
	if e.options.CallsAbandoned != nil {
		e.options.CallsAbandoned(op.Info())
	}
	go e.awaitAbandoned(op, left)
}

// awaitAbandoned frees the key when the last call that was abandoned has returned. It ends with that call.
func (e *Executor) awaitAbandoned(op *Operation, calls []abandonedCall) {
	defer e.noteReturned()
	for _, call := range calls {
		<-call.done
	}
	e.table.End(&op.lock)
	e.mu.Lock()
	delete(e.abandoned, op)
	e.mu.Unlock()
	info := op.Info()
	e.options.Logger.Info("a call that was abandoned has returned", append(logKeys(info), "after", time.Since(info.Started))...)
	e.keyFreed(info)
}

// keyFreed calls KeyFreed for a key that is freed after its operation has ended.
func (e *Executor) keyFreed(info OperationInfo) {
	if e.options.KeyFreed != nil {
		e.options.KeyFreed(info)
	}
}

// Returned returns a channel that is closed when every call that was abandoned so far has returned, and KeyFreed was called
// for its operation. After [Executor.Shutdown] nothing of this executor touches a volume from then on.
func (e *Executor) Returned() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.returned == nil {
		e.returned = make(chan struct{})
	}
	returned := e.returned
	e.closeReturned()
	return returned
}

// noteReturned notes that the calls of one operation that were abandoned have returned.
func (e *Executor) noteReturned() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.awaited--
	e.closeReturned()
}

// closeReturned wakes the callers of Returned when no abandoned call runs. The caller holds the lock.
func (e *Executor) closeReturned() {
	if e.awaited == 0 && e.returned != nil {
		close(e.returned)
		e.returned = nil
	}
}
