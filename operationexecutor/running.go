package operationexecutor

import (
	"context"
	"slices"
)

// This file keeps the operations that run, by the context that bounds them: many share one, and it is watched once.

// bound is a context and the operations that it bounds. The executor's lock guards it.
type bound struct {
	executor *Executor
	done     <-chan struct{} // tells one context from another; nil for one that never ends
	ended    bool
	first    *Operation
	// stop ends the watch; nil while it is not watched.
	stop func() bool
}

// enter puts an operation among those that run. It returns false after a shutdown.
func (e *Executor) enter(ctx context.Context, op *Operation) bool {
	var ready *flight
	if op.alone != nil {
		ready = e.prepareAlone(ctx, op)
	}
	b, isNew := e.join(ctx.Done(), op, ready) //nolint:contextcheck // The flight is the context.
	if b == nil {
		return false
	}
	if isNew && b.done != nil {
		e.watchBound(ctx, b)
	}
	return true
}

// watchBound lets the end of a context end the calls of the operations of b, until b is forgotten, which it may be by now.
func (e *Executor) watchBound(ctx context.Context, b *bound) {
	stop := context.AfterFunc(ctx, func() { e.contextEnded(ctx, b) })
	e.mu.Lock()
	kept := e.bounds[b.done] == b
	if kept {
		b.stop = stop
	}
	e.mu.Unlock()
	if !kept {
		stop()
	}
}

// prepareAlone returns the one call of the operation when it may begin, nil when its context has ended.
func (e *Executor) prepareAlone(ctx context.Context, o *Operation) *flight {
	f := &o.single
	f.op, f.parent, f.timeout = o, ctx, e.options.timeout(o.plugin, o.kind())
	if ctx.Err() != nil {
		return nil
	}
	return f
}

// join enters op among those of its context. The call that is ready, if any, is under way from here on, when nothing holds
// it up.
func (e *Executor) join(done <-chan struct{}, op *Operation, ready *flight) (b *bound, isNew bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.isShutDown {
		return nil, false
	}
	b = e.lastBound
	if b == nil || b.done != done || b.ended {
		b = e.bounds[done]
	}
	isNew = b == nil
	if isNew {
		b = &bound{executor: e, done: done}
		e.bounds[done] = b
	}
	op.bound, op.after = b, b.first
	if b.first != nil {
		b.first.before = op
	}
	b.first = op
	e.running++
	if ready != nil && !b.ended {
		e.tryLaunch(ready)
	}
	return b, isNew
}

// tryLaunch has a call under way when a worker of its plugin is free. The lock must be held.
func (e *Executor) tryLaunch(f *flight) {
	calls := e.callsOf(f.op.plugin)
	if !calls.tryAcquire(e.options.HungPerPlugin) {
		return
	}
	f.plugin = calls
	e.launchNow(f, f.op.claim.Started)
}

// contextEnded ends the calls of all operations of b.
func (e *Executor) contextEnded(ctx context.Context, b *bound) {
	var flights []*flight
	e.mu.Lock()
	b.ended = true
	if b.first == nil {
		delete(e.bounds, b.done)
	}
	for op := b.first; op != nil; op = op.after {
		if f := op.flight(); f != nil {
			flights = append(flights, f)
		}
	}
	e.mu.Unlock()
	for _, f := range flights {
		e.expire(f, ctx.Err())
	}
}

// flight is the call that is under way, if any. The lock must be held.
func (o *Operation) flight() *flight {
	if o.alone != nil {
		return &o.single // which is not ended when it is not under way
	}
	return o.x.flight
}

// leave takes an operation from those that run, and wakes those who wait for it, and for the last one.
func (e *Executor) leave(op *Operation) {
	e.mu.Lock()
	op.bound.remove(op)
	unused := e.retire(op.bound)
	e.running--
	op.close()
	if e.running == 0 && e.quiet != nil {
		close(e.quiet)
		e.quiet = nil
	}
	e.mu.Unlock()
	unused.unwatch()
}

func (b *bound) remove(op *Operation) {
	if op.before != nil {
		op.before.after = op.after
	} else {
		b.first = op.after
	}
	if op.after != nil {
		op.after.before = op.before
	}
	op.before, op.after = nil, nil
}

// retire forgets a context that bounds no operation, and returns one that need not be watched any longer. The one that
// was the last to lose all its operations stays, since the next operation most often has the same. The lock must be held.
func (e *Executor) retire(b *bound) (unused *bound) {
	switch {
	case b.first != nil:
		return nil
	case b.ended:
		delete(e.bounds, b.done)
		return nil
	case b == e.lastBound:
		return nil
	}
	unused, e.lastBound = e.lastBound, b
	if unused == nil || unused.first != nil || unused.ended {
		return nil
	}
	delete(e.bounds, unused.done)
	return unused
}

// unwatch ends the watch of a context that is forgotten.
func (b *bound) unwatch() {
	if b != nil && b.stop != nil {
		b.stop()
	}
}

// forgetBounds forgets the contexts that bound no operation.
func (e *Executor) forgetBounds() {
	var unused []*bound
	e.mu.Lock()
	e.lastBound = nil
	for done, b := range e.bounds {
		if b.first == nil {
			delete(e.bounds, done)
			unused = append(unused, b)
		}
	}
	e.mu.Unlock()
	for _, b := range unused {
		b.unwatch()
	}
}

// callsOf returns the calls of a plugin. The lock must be held.
func (e *Executor) callsOf(plugin string) *pluginCalls {
	calls := e.plugins[plugin]
	if calls == nil {
		calls = &pluginCalls{name: plugin}
		if plugin != "" {
			calls.workers = make(chan struct{}, e.options.WorkersPerPlugin)
		}
		e.plugins[plugin] = calls
	}
	return calls
}

func (e *Executor) callsOfPlugin(plugin string) *pluginCalls {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.callsOf(plugin)
}

// namesLeft returns the operations that run, and those that have ended and of which a call still runs, each in the order
// in which they began.
func (e *Executor) namesLeft() (running, left []OperationInfo) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, b := range e.bounds {
		for op := b.first; op != nil; op = op.after {
			running = append(running, op.Info())
		}
	}
	for op := range e.left {
		left = append(left, op.Info())
	}
	return inOrder(running), inOrder(left)
}

func inOrder(infos []OperationInfo) []OperationInfo {
	slices.SortFunc(infos, func(a, b OperationInfo) int { return a.Started.Compare(b.Started) })
	return infos
}
