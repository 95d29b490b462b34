package operationexecutor

import (
	"time"

	"github.com/volumekit/volumekit/internal/outcome"
)

// This file keeps the keys of operations that have ended while calls of them still run.

// leftCall is a call that was abandoned.
type leftCall struct {
	name    string
	started time.Time
	done    <-chan struct{} // closed when it has really ended
	ours    bool            // this executor abandoned it; else the plugin did, and the operation went on
}

// noteLeft notes the calls that err, the error of c, says were abandoned.
func (x *execution) noteLeft(c *pluginCall, err error) {
	for _, done := range outcome.Running(err) {
		x.left = append(x.left, leftCall{name: c.name, started: c.Started, done: done, ours: c.Done() == done})
	}
}

// stillRunning returns the calls that were abandoned and have not ended.
func (x *execution) stillRunning() []leftCall {
	var running []leftCall
	for _, call := range x.left {
		if !isClosed(call.done) {
			running = append(running, call)
		}
	}
	return running
}

// keepLocked keeps the key of an operation locked until its abandoned calls have returned.
func (e *Executor) keepLocked(op *Operation, left []leftCall) {
	e.mu.Lock()
	e.left[op] = left
	e.awaited++
	e.mu.Unlock()
	op.close()
	e.options.Logger.Warn("a call of a plugin was abandoned; its key stays taken", logKeys(op.Info())...)
	if e.options.CallsLeft != nil {
		e.options.CallsLeft(op.Info())
	}
	go e.awaitLeft(op, left)
}

// awaitLeft frees the key when the last call that was abandoned has returned. It ends with that call.
func (e *Executor) awaitLeft(op *Operation, calls []leftCall) {
	defer e.noteReturned()
	for _, call := range calls {
		<-call.done
	}
	e.table.End(&op.lock)
	e.mu.Lock()
	delete(e.left, op)
	e.mu.Unlock()
	info := op.Info()
	e.options.Logger.Info("a call that was abandoned has returned", append(logKeys(info), "after", time.Since(info.Started))...)
	e.keyFreed(info)
}

// keyFreed tells that a key is free of which no operation tells.
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

// closeReturned tells those who wait when there is nothing to wait for. The lock must be held.
func (e *Executor) closeReturned() {
	if e.awaited == 0 && e.returned != nil {
		close(e.returned)
		e.returned = nil
	}
}
