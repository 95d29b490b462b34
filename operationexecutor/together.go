package operationexecutor

import (
	"context"
	"time"
)

// This file makes several calls of a plugin in one flight: those that do no I/O, and yet may hang. Each of them is a step
// and can be told from the others when it does.

// questions are the context of such calls. find and construct know it.
type questions struct {
	errand[struct{}]
	plugin string // the plugin that was found
	// The executor's lock guards what follows, and the name of the call.
	began time.Time
	steps []Step // those that have ended
}

// together calls ask, with a deadline for all that it asks with the context that it gets, and goes on with next: see then. What
// ask writes must not be read when it fails: a call that was left behind may go on, but not to the next question. Nothing is
// put together as long as it is not known whose workers are to make the calls.
func (x *execution) together(ctx context.Context, ask func(ctx context.Context) error, next func(ctx context.Context, err error) error) error {
	if x.op.plugin == "" {
		return next(ctx, ask(ctx))
	}
	q := x.questions(ask)
	q.nextPlain, q.rare.leg, x.leg = next, q, q
	return errCalls
}

// gather is together for what returns something.
func gather[T any](ctx context.Context, x *execution, ask func(ctx context.Context) (T, error), next func(ctx context.Context, value T, err error) error) error {
	var value, none T
	return x.together(ctx, func(ctx context.Context) (err error) {
		value, err = ask(ctx)
		return err
	}, func(ctx context.Context, err error) error {
		if err != nil {
			return next(ctx, none, err) // The value may still be written.
		}
		return next(ctx, value, nil)
	})
}

func (x *execution) questions(ask func(ctx context.Context) error) *questions {
	q := &questions{}
	q.doPlain = func(context.Context) error { return ask(q) } //nolint:contextcheck // The questions are the context.
	q.prepare(x, x.asking("FindPlugin"))
	return q
}

// fly implements leg.
func (q *questions) fly(ctx context.Context) bool {
	q.rare.onward = ctx
	if err := q.takeOff(ctx); err != nil {
		q.answer.err = err
		return true
	}
	return q.flyHere(q)
}

// goOn implements leg.
func (q *questions) goOn(ctx context.Context) error {
	if q.tookOff() {
		q.foundOut()
	}
	q.op.x.asked(q, q.answer.err)
	return q.nextPlain(ctx, q.answer.err)
}

// lost implements leg.
func (q *questions) lost(ctx context.Context) error {
	err := q.lostError() //nolint:contextcheck // The questions are the context.
	q.op.x.asked(q, err)
	return q.nextPlain(ctx, err)
}

// foundOut makes known which plugin was found.
func (q *questions) foundOut() {
	if q.plugin != "" {
		q.op.setPlugin(q.plugin)
	}
}

// asked notes how the calls went, of which none is made any more.
func (x *execution) asked(q *questions, err error) {
	if !q.tookOff() {
		x.flown(&q.flight, err)
		return
	}
	if err != nil {
		x.op.noteLeft(&q.flight, err)
	}
	q.endStep(time.Now(), err)
	x.op.addSteps(q.steps)
	o := x.executor.options.Observer
	if o == nil {
		return
	}
	for _, s := range q.steps {
		o.OperationStepped(x.op.Info(), s)
	}
}

// next ends the step before and begins another one. It returns false when the calls were given up.
func (q *questions) next(name string) bool {
	now, e := time.Now(), q.op.executor()
	e.mu.Lock()
	defer e.mu.Unlock()
	if q.stage == lost {
		return false
	}
	q.endStep(now, nil)
	q.seldom.call.name, q.began = name, now
	return true
}

// endStep ends the step that has begun, if any.
func (q *questions) endStep(now time.Time, err error) {
	if q.began.IsZero() {
		return
	}
	if q.steps == nil {
		q.steps = make([]Step, 0, manySteps(q.op.kind()))
	}
	q.steps = append(q.steps, Step{Name: q.seldom.call.name, Started: q.began, Duration: now.Sub(q.began), Err: err})
}
