package volumetest

import (
	"github.com/volumekit/volumekit/volume"
)

func ownershipCases() []Case {
	return []Case{{
		Rule: "O1", Group: "ownership", Name: "group of the pod",
		Sentence: "SetUp with FsGroup MUST give the content to that group, earlier content too, and MUST let the group write.",
		run:      groupOwns,
	}}
}

// owner is a World that tells to whom files belong.
type owner interface {
	// Group returns the group of what is at name, and whether it may write there.
	Group(name string) (gid int64, mayWrite bool, err error)
	// CanGive reports whether files can be given to a group that the process is not in.
	CanGive() bool
}

// fsGroup is a group that no machine has by itself.
const fsGroup = int64(471_147)

func groupOwns(e *env) {
	world, ok := e.world.(owner)
	if !e.config.FSGroup || !ok || !world.CanGive() {
		e.t.Skipf("Config.FSGroup is false, or the process may not give files to another group")
	}
	s := e.ready(e.newSpec())
	if e.config.Shared {
		earlier := s.forPod().setUp()
		earlier.write("file", "content")
		earlier.tearDown()
	}
	p := s.forPod()
	group := fsGroup
	e.must("SetUp with FsGroup", p.mounter.SetUp(e.ctx(), volume.MounterArgs{PodUID: string(p.pod.UID), FsGroup: &group}))
	paths := []string{p.path}
	if e.config.Shared {
		p.expect("file", "content")
		paths = append(paths, p.path+"/file")
	}
	for _, path := range paths {
		gid, mayWrite, err := world.Group(path)
		if err != nil || gid != group || !mayWrite {
			e.broken("%s is of group %d instead of %d, which may write: %v: %v", path, gid, group, mayWrite, err)
		}
	}
	p.tearDown()
	s.release()
}
