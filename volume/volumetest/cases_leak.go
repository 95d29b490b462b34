package volumetest

import (
	"context"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/volumekit/volumekit/volume"
)

// leakSentence is that of L2, which every case keeps.
const leakSentence = "No call MAY leave a goroutine or an open descriptor of any file. Each case looks for them after it has undone everything."

func leakCases() []Case {
	return []Case{{
		Rule: "L1", Group: "leak", Name: "nothing is left",
		Sentence: "TearDown, UnmountDevice and Detach MUST leave nothing: no mount, nothing in the pod's volume directory or at the staging path, no goroutine, no open file, no loop device.",
		run:      nothingLeft,
	}, {
		Rule: "L2", Group: "leak", Name: "goroutines and descriptors",
		Sentence: leakSentence,
		run:      wholeLife,
	}, {
		Rule: "L3", Group: "leak", Name: "failed calls",
		Sentence: "SetUp and MountDevice that fail with an error that is not uncertain MUST leave no directory, no file and no mount.",
		run:      failedCallsLeaveNothing,
	}}
}

// wholeLife makes each call that a volume can need on a node; who looks for what is left is Case.Run.
func wholeLife(e *env) {
	if e.config.NewSpec == nil {
		e.eachMode(func(newOptions func() volume.VolumeOptions) { e.use(e.specOf(newOptions()), func(holding) {}) })
	}
	if spec := e.newSpec(); !volume.IsBlock(spec) {
		s := e.ready(spec)
		p := s.forPod().setUp()
		_, _ = p.mounter.GetMetrics(e.ctx())
		p.tearDown()
		s.release()
	}
}

func failedCallsLeaveNothing(e *env) {
	spec := e.newSpec()
	if volume.IsBlock(spec) {
		e.t.Skipf("the volume is a device: nothing is set up")
	}
	s := e.ready(spec)
	for n := range mostSteps {
		p := s.forPod()
		ctx, steps := e.endsAtStep(n)
		err := p.trySetUp(ctx)
		if err != nil && !isUncertain(err) {
			p.expectGone()
		}
		e.awaitLost(err)
		p.tearDown()
		if !steps.reached() {
			break
		}
	}
	for n := 0; s.stagePath != "" && n < mostSteps; n++ {
		e.must("UnmountDevice", e.deviceUnmounter().UnmountDevice(e.ctx(), s.stagePath))
		ctx, steps := e.endsAtStep(n)
		err := e.deviceMounter(s.spec).MountDevice(ctx, s.spec, s.devicePath, s.stagePath, volume.DeviceMounterArgs{})
		if err != nil && !isUncertain(err) && (e.exists(s.stagePath) || len(e.mountsAt(s.stagePath)) > 0) {
			e.broken("MountDevice failed with %q, which is not uncertain, and %s is left", err, s.stagePath)
		}
		e.awaitLost(err)
		if !steps.reached() {
			break
		}
	}
	s.release()
}

// expectNoLeaks fails the case where goroutines or descriptors are there that were not before it.
func (e *env) expectNoLeaks(before []string) {
	if e.t.Failed() {
		return
	}
	e.agent, e.world, e.undo = agent{}, nil, nil // A mounter keeps a descriptor for as long as it can be reached.
	ctx, cancel := context.WithTimeout(e.afterwards(), e.leakTimeout())
	defer cancel()
	left := lasting(ctx, func() string {
		opened := slices.DeleteFunc(descriptors(), func(file string) bool { return slices.Contains(before, file) })
		left := labelledStacks(e.id) + strings.Join(opened, "\n")
		if left != "" {
			runtime.GC()
		}
		return left
	})
	if left != "" {
		e.t.Errorf("case %s leaves goroutines or descriptors:\n%s\nrule L2 is broken: %s", e.c, left, leakSentence)
	}
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
	for _, name := range e.namesIn(filepath.Dir(e.host.GetPodVolumeDir(p.pod.UID, e.plugin.GetPluginName(), p.spec.Name()))) {
		e.broken("%q is left in the pod's directory of volumes", name)
	}
	if mounts := e.mountsBeneathRoot(); len(mounts) > 0 {
		e.broken("%d mounts are left, the first at %s", len(mounts), mounts[0].Path)
	}
	ctx, cancel := context.WithTimeout(e.ctx(), e.leakTimeout())
	defer cancel()
	if left := goroutinesLeft(ctx, e.id); left != "" {
		e.broken("goroutines are left that the plugin started:\n%s", left)
	}
	if left := openFilesLeft(ctx, e.root, before); left != "" {
		e.broken("open files are left: %s", left)
	}
	if left := loopDevicesLeft(ctx, e.root); left != "" {
		e.broken("loop devices are left: %s", left)
	}
}
