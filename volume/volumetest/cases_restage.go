package volumetest

import (
	"path/filepath"

	"github.com/volumekit/volumekit/volume"
)

// restageCases are about what is staged again, not staged, or in use.
func restageCases() []Case {
	return []Case{
		{
			Rule: "S6", Group: "stage", Name: "content of what is staged again",
			Sentence: "What a pod has written MUST be read back after the volume was unstaged, detached, attached and staged again, also by a new value of the plugin.",
			Needs:    volume.CapDeviceMount, run: contentSurvivesStaging,
		},
		{
			Rule: "S7", Group: "stage", Name: "SetUp of what is not staged",
			Sentence: "SetUp of a volume that is not staged MUST fail, and MUST leave no mount and nothing at the pod's path.",
			Needs:    volume.CapDeviceMount, run: setUpUnstaged,
		},
		{
			Rule: "S8", Group: "stage", Name: "UnmountDevice in use",
			Sentence: "UnmountDevice of a mount with an open file MUST fail and MUST leave the volume staged.",
			Needs:    volume.CapDeviceMount, run: unmountDeviceInUse,
		},
		{
			Rule: "S9", Group: "stage", Name: "UnmountDevice beside a pod",
			Sentence: "UnmountDevice while a pod has the volume MUST leave the pod's volume usable, whether the call fails or succeeds.",
			Needs:    volume.CapDeviceMount, run: unmountDeviceInUseByPod,
		},
		{
			Rule: "S10", Group: "stage", Name: "other volumes stay staged",
			Sentence: "UnmountDevice MUST leave every other volume staged, also if one name begins with the other.",
			Needs:    volume.CapDeviceMount, run: othersStayStaged,
		},
	}
}

func contentSurvivesStaging(e *env) {
	e.requireLasting()
	spec := e.newSpec()
	e.fill(spec, "content")
	e.expectContent(spec, "content")
	e.crash()
	e.expectContent(spec, "content")
}

func setUpUnstaged(e *env) {
	s := e.stageable()
	e.must("UnmountDevice", e.deviceUnmounter().UnmountDevice(e.ctx(), s.stagePath))
	p := s.forPod()
	err := p.trySetUp(e.ctx())
	if err == nil {
		e.broken("SetUp has succeeded, and the volume is not staged")
	}
	if !isUncertain(err) {
		p.expectGone()
	}
	e.awaitLost(err)
	p.tearDown()
	s.mountDevice()
	s.release()
}

func unmountDeviceInUse(e *env) {
	world, ok := e.world.(holder)
	if !ok {
		e.t.Skipf("Config.World has no method Hold: a mount cannot be held")
	}
	s := e.stageable()
	if len(e.mountsAt(s.stagePath)) == 0 {
		e.t.Skipf("nothing is mounted at the path of staging")
	}
	p := s.forPod().setUp()
	p.write("file", "content")
	p.tearDown()
	release, err := world.Hold(filepath.Join(s.stagePath, p.aFile()))
	if err != nil {
		e.t.Skipf("the volume's files are not at the path of staging: %v", err)
	}
	e.later(release)
	err = e.deviceUnmounter().UnmountDevice(e.ctx(), s.stagePath)
	if err == nil {
		e.broken("UnmountDevice has succeeded while a file of the volume was open")
	}
	e.expectMounted(s.stagePath)
	release()
	e.awaitLost(err)
	s.release()
}

func unmountDeviceInUseByPod(e *env) {
	s := e.stageable()
	p := s.forPod().setUp()
	p.write("file", "content")
	e.awaitLost(e.deviceUnmounter().UnmountDevice(e.ctx(), s.stagePath))
	p.expectUsable()
	p.expect("file", "content")
	p.tearDown()
	s.release()
}

func othersStayStaged(e *env) {
	one, two := e.newSpecsAlike()
	first, second := e.ready(one), e.ready(two)
	if first.stagePath == "" || second.stagePath == "" {
		e.t.Skipf("CanDeviceMount is false: give specs that are staged")
	}
	if first.stagePath == second.stagePath {
		e.broken("volumes %q and %q are both staged at %s", one.Name(), two.Name(), first.stagePath)
	}
	p := second.forPod().setUp()
	p.write("file", "of the second volume")
	first.release()
	e.expectMounted(second.stagePath)
	p.expectUsable()
	p.expect("file", "of the second volume")
	p.tearDown()
	second.release()
}
