package volumetest

func leakCases() []Case {
	return []Case{{
		Rule: "L1", Group: "leak", Name: "nothing is left",
		Sentence: "After TearDown, UnmountDevice and Detach nothing MUST be left: no mount, no directory of the pod or of staging, no goroutine, no open file, no loop device.",
		run:      nothingLeft,
	}}
}

func nothingLeft(e *env) {
	before := openFiles(e.root)
	s := e.ready(e.newSpec())
	p := s.forPod().setUp()
	_, _ = p.mounter.GetMetrics(e.ctx())
	p.tearDown()
	s.release()
	p.expectGone()
	if s.stagePath != "" && e.exists(s.stagePath) {
		e.broken("%s is left", s.stagePath)
	}
	if mounts := e.mountsBeneathRoot(); len(mounts) > 0 {
		e.broken("%d mounts are left, the first at %s", len(mounts), mounts[0].Path)
	}
	if left := goroutinesLeft(e.ctx(), e.id); left != "" {
		e.broken("goroutines are left that the plugin started:\n%s", left)
	}
	if left := openFilesLeft(e.ctx(), e.root, before); left != "" {
		e.broken("open files are left: %s", left)
	}
	if left := loopDevicesLeft(e.ctx(), e.root); left != "" {
		e.broken("loop devices are left: %s", left)
	}
}
