package volumetest

import (
	"context"
	"time"

	"github.com/volumekit/volumekit/volume"
)

func contextCases() []Case {
	return []Case{{
		Rule: "Q1", Group: "context", Name: "return soon",
		Sentence: "A call whose context has ended MUST return within five seconds.",
		run:      endedCallsReturn,
	}}
}

func endedCallsReturn(e *env) {
	if e.capabilities.Has(volume.CapProvision) {
		options := e.volumeOptions()
		provisioner := e.provisioner(options)
		_ = e.soon("Provision", func(ctx context.Context) error {
			_, err := provisioner.Provision(ctx, nil, nil)
			return err
		})
		e.provision(options) // which is deleted afterwards, as what the first call has made
	}
	s := e.ready(e.newSpec())
	if volume.IsBlock(s.spec) {
		s.release()
		return
	}
	p := s.forPod()
	e.awaitLost(e.soon("SetUp", p.trySetUp))
	p.setUp()
	e.awaitLost(e.soon("GetMetrics", func(ctx context.Context) error {
		_, err := p.mounter.GetMetrics(ctx)
		return err
	}))
	e.awaitLost(e.soon("TearDown", func(ctx context.Context) error { return p.unmounter().TearDown(ctx) }))
	p.tearDown()
	if s.stagePath != "" {
		e.awaitLost(e.soon("UnmountDevice", func(ctx context.Context) error { return e.deviceUnmounter().UnmountDevice(ctx, s.stagePath) }))
	}
	if s.attached {
		e.awaitLost(e.soon("Detach", func(ctx context.Context) error { return e.detacher().Detach(ctx, s.volumeName, e.config.NodeName) }))
	}
	s.release()
}

// soon makes a call whose context has ended, which must return.
func (e *env) soon(name string, call func(context.Context) error) error {
	e.t.Helper()
	timeout := e.leakTimeout()
	r, timer := start(func() error { return call(e.ended()) }), time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-r.done:
	case <-timer.C:
		e.broken("%s has not returned %v after its context had ended: each case that ends a context takes as long as that", name, timeout)
	}
	return r.err
}
