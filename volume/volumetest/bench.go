package volumetest

import "testing"

// RunBenchmarks measures the plugin of config: a set-up and tear-down for one pod, a set-up of what is set up already, and
// a whole life with attaching and staging where the plugin has them. The time of the suite's own looks is not counted.
func RunBenchmarks(b *testing.B, config Config) {
	b.Helper()
	bench := Case{Rule: "bench", Group: "bench", Sentence: "A plugin that is measured MUST work."}
	for _, row := range []struct {
		name string
		run  func(b *testing.B, e *env)
	}{
		{"SetUpTearDown", benchSetUpTearDown}, {"SecondSetUp", benchSecondSetUp}, {"Life", benchLife},
	} {
		b.Run(row.name, func(b *testing.B) {
			e := newEnv(b, bench, config)
			defer e.cleanUp()
			row.run(b, e)
		})
	}
}

func benchSetUpTearDown(b *testing.B, e *env) {
	s := e.ready(e.newSpec())
	p := s.forPod()
	b.ReportAllocs()
	for b.Loop() {
		p.setUp()
		p.tearDown()
	}
	s.release()
}

func benchSecondSetUp(b *testing.B, e *env) {
	s := e.ready(e.newSpec())
	p := s.forPod().setUp()
	b.ReportAllocs()
	for b.Loop() {
		p.setUp()
	}
	p.tearDown()
	s.release()
}

func benchLife(b *testing.B, e *env) {
	spec := e.newSpec()
	keep := len(e.undo)
	b.ReportAllocs()
	for b.Loop() {
		s := e.ready(spec)
		s.forPod().setUp().tearDown()
		s.release()
		e.undo = e.undo[:keep]
	}
}
