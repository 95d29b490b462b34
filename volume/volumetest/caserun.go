package volumetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// caseRun is one run of a case: how it fails, the contexts of its calls, and what is undone at its end.
type caseRun struct {
	t    testing.TB
	c    Case
	undo []func()
}

// broken fails the case: its rule does not hold.
func (r *caseRun) broken(format string, args ...any) {
	r.t.Helper()
	r.t.Fatalf("%s\nrule %s is broken: %s", fmt.Sprintf(format, args...), r.c.Rule, r.c.Sentence)
}

// must fails the case when a call that has to succeed did not.
func (r *caseRun) must(call string, err error) {
	r.t.Helper()
	if err != nil {
		r.broken("%s: %v", call, err)
	}
}

// mustBoth fails the case unless two calls have succeeded.
func (r *caseRun) mustBoth(n int, calls string, one, two error) {
	r.t.Helper()
	if one != nil || two != nil {
		r.broken("%s, the first of which was held in step %d: %v; %v", calls, n, one, two)
	}
}

// ctx is the context of the calls under test.
func (r *caseRun) ctx() context.Context { return r.t.Context() }

// afterwards is the context of clean-up.
func (r *caseRun) afterwards() context.Context { return context.WithoutCancel(r.ctx()) }

// ended returns a context that has ended.
func (r *caseRun) ended() context.Context {
	ctx, cancel := context.WithCancelCause(r.ctx())
	cancel(errors.New("cancelled by the test"))
	return ctx
}

// endsAfter returns a context that ends in the nth of the moments of a call that takes whole.
func (r *caseRun) endsAfter(whole time.Duration, n int) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(r.ctx(), whole*time.Duration(n+1)/(midwayPoints+1), errors.New("cancelled by the test"))
}

// endsAtStep returns a context that ends in the nth step of the calls that have it.
func (r *caseRun) endsAtStep(n int) (context.Context, *steps) {
	ctx, cancel := context.WithCancel(r.ctx())
	r.later(cancel)
	return atStep(ctx, n, cancel)
}

// awaitLost waits for the call that err says was abandoned: nothing else may be started on its volume before.
func (r *caseRun) awaitLost(err error) {
	r.t.Helper()
	var lost interface{ Done() <-chan struct{} }
	if !errors.As(err, &lost) {
		return
	}
	select {
	case <-lost.Done():
	case <-r.ctx().Done():
		r.t.Fatalf("a call that was abandoned has not returned: %v", err)
	}
}

// later registers what leaves the machine clean when the case fails midway.
func (r *caseRun) later(f func()) { r.undo = append(r.undo, f) }

// undoTo undoes what was registered, the last first, until n are left.
func (r *caseRun) undoTo(n int) {
	for len(r.undo) > n {
		last := r.undo[len(r.undo)-1]
		r.undo = r.undo[:len(r.undo)-1]
		last()
	}
}
