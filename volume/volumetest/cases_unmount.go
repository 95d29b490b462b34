package volumetest

import (
	"path/filepath"
)

func unmountCases() []Case {
	return []Case{
		{
			Rule: "U1", Group: "unmount", Name: "TearDown leaves no trace",
			Sentence: "TearDown MUST unmount the pod's path and remove it, and MUST leave the volume usable for other pods.",
			run:      tearDownOne,
		},
		{
			Rule: "U2", Group: "unmount", Name: "TearDown without SetUp",
			Sentence: "TearDown of a volume that was never set up MUST succeed.",
			run:      tearDownWithoutSetUp,
		},
		{
			Rule: "U3", Group: "unmount", Name: "TearDown twice",
			Sentence: "A second TearDown MUST succeed.",
			run:      tearDownTwice,
		},
		{
			Rule: "U4", Group: "unmount", Name: "TearDown after a crash",
			Sentence: "TearDown by a new value of the plugin, which gets only the inner name and the pod's UID, MUST undo what an earlier value has set up.",
			run:      tearDownAfterCrash,
		},
		{
			Rule: "U5", Group: "unmount", Name: "content outlives the pod",
			Sentence: "TearDown MUST NOT delete content that outlives the pod.",
			run:      contentOutlivesPod,
		},
		{
			Rule: "U6", Group: "unmount", Name: "cancelled TearDown",
			Sentence: "TearDown with a context that has ended MUST do no harm: the next TearDown MUST finish the work.",
			run:      cancelledTearDown,
		},
		{
			Rule: "U7", Group: "unmount", Name: "TearDown cancelled midway",
			Sentence: "TearDown whose context ends during the call MUST do no harm: the next TearDown MUST finish the work.",
			run:      cancelledInTearDown,
		},
		{
			Rule: "U8", Group: "unmount", Name: "TearDown in use",
			Sentence: "TearDown of a mount with an open file MUST fail and MUST leave the volume usable.",
			run:      tearDownInUse,
		},
	}
}

func tearDownOne(e *env) {
	s := e.ready(e.newSpec())
	p, q := s.forPod().setUp(), s.forPod().setUp()
	q.write("file", "content")
	p.tearDown()
	p.expectGone()
	q.expectUsable()
	q.expect("file", "content")
	q.tearDown()
	q.expectGone()
	s.release()
}

func tearDownWithoutSetUp(e *env) {
	s := e.ready(e.newSpec())
	p := s.forPod()
	p.tearDown()
	p.expectGone()
	s.release()
}

func tearDownTwice(e *env) {
	s := e.ready(e.newSpec())
	p := s.forPod().setUp()
	p.tearDown()
	p.tearDown()
	p.expectGone()
	s.release()
}

func tearDownAfterCrash(e *env) {
	s := e.ready(e.newSpec())
	p := s.forPod().setUp()
	e.crash()
	p.tearDown()
	p.expectGone()
	s.release()
}

func contentOutlivesPod(e *env) {
	spec := e.newSpec()
	if spec.PersistentVolume != nil && e.config.Lifetime == LifetimeUnknown {
		e.broken("volume %q is a PersistentVolume, and Config.Lifetime does not say whether its content outlives the pod", spec.Name())
	}
	if e.config.Lifetime == LifetimeOfPod || e.config.Lifetime == LifetimeUnknown {
		e.t.Skipf("Config.Lifetime says that content ends with the pod")
	}
	s := e.ready(spec)
	first := s.forPod().setUp()
	first.write("file", "content")
	first.tearDown()
	second := s.forPod().setUp()
	second.expect("file", "content")
	second.tearDown()
	s.release()
}

func cancelledTearDown(e *env) {
	s := e.ready(e.newSpec())
	p := s.forPod().setUp()
	p.tearDownAfterEnded(p.unmounter().TearDown(e.ended()))
	s.release()
}

// tearDownAfterEnded takes the volume away after a TearDown that returned err when its context had ended.
func (p *podVolume) tearDownAfterEnded(err error) {
	p.e.t.Helper()
	if err == nil {
		p.expectGone()
	}
	p.e.awaitLost(err)
	p.tearDown()
	p.expectGone()
}

func cancelledInTearDown(e *env) {
	s := e.ready(e.newSpec())
	first := s.forPod().setUp()
	whole := timeOf(first.tearDown)
	for n := range midwayPoints {
		p := s.forPod().setUp()
		ctx, cancel := e.endsAfter(whole, n)
		err := p.unmounter().TearDown(ctx)
		cancel()
		p.tearDownAfterEnded(err)
	}
	s.release()
}

// holder is a World in which a file can be kept open, as a process of the pod would.
type holder interface {
	// Hold opens what is at name until release is called.
	Hold(name string) (release func(), err error)
}

func tearDownInUse(e *env) {
	world, ok := e.world.(holder)
	if !ok || e.config.PlainDirectory {
		e.t.Skipf("nothing is mounted at the pod's path, or Config.World has no method Hold: a mount cannot be held")
	}
	s := e.ready(e.newSpec())
	p := s.forPod().setUp()
	p.write("file", "content")
	release, err := world.Hold(filepath.Join(p.path, p.aFile()))
	if err != nil {
		e.t.Fatalf("opening a file of the volume: %v", err)
	}
	e.later(release)
	err = p.unmounter().TearDown(e.ctx())
	if err == nil {
		e.broken("TearDown has succeeded while a file of the volume was open")
	}
	p.expectUsable()
	p.expect("file", "content")
	release()
	e.awaitLost(err)
	p.tearDown()
	p.expectGone()
	s.release()
}
