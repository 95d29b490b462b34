package volumetest

import (
	"io/fs"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// podCases are about the volumes of one pod, and the directory that it gets.
func podCases() []Case {
	return []Case{
		{
			Rule: "M13", Group: "mount", Name: "two volumes of one pod",
			Sentence: "The volumes of a pod MUST have different paths, also if one name begins with the other. TearDown of one MUST leave the others mounted, with their content.",
			run:      twoVolumesOfOnePod,
		},
		{
			Rule: "M14", Group: "mount", Name: "refresh that succeeds",
			Sentence: "SetUp with IsRemount or with ReconstructedVolume that succeeds MUST keep what the pod has written.",
			run:      refreshKeepsContent,
		},
		{
			Rule: "M15", Group: "mount", Name: "nosuid and nodev",
			Sentence: "A filesystem that the plugin makes, for a pod or a claim, MUST be mounted nosuid and nodev, at the pod's path and at the staging path. Mount options of the volume MAY override that.",
			run:      noSetuidNoDevices,
		},
		{
			Rule: "M16", Group: "mount", Name: "mode of the root",
			Sentence: "Every user MUST be able to enter the root of a filesystem that the plugin makes. SetUp without FsGroup, for any pod, MUST keep the mode and group that a pod has given the root.",
			run:      rootKeepsItsMode,
		},
		reuseCase(),
	}
}

func twoVolumesOfOnePod(e *env) {
	one, two := e.newSpecsAlike()
	first, second := e.ready(one), e.ready(two)
	pod := newPod()
	p, q := first.forPodOf(pod).setUp(), second.forPodOf(pod).setUp()
	if p.path == q.path {
		e.broken("volumes %q and %q of one pod are both at %s", one.Name(), two.Name(), p.path)
	}
	p.write("file", "of the first volume")
	q.write("file", "of the second volume")
	p.expect("file", "of the first volume")
	p.tearDown()
	p.expectGone()
	q.expectUsable()
	q.expect("file", "of the second volume")
	q.tearDown()
	q.expectGone()
	first.release()
	second.release()
}

func refreshKeepsContent(e *env) {
	s := e.ready(e.newSpec())
	p := s.forPod().setUp()
	p.write("file", "content")
	for _, args := range []volume.MounterArgs{{IsRemount: true}, {ReconstructedVolume: true}} {
		p.renew()
		e.must("SetUp once more", p.trySetUpWith(e.ctx(), args))
		p.expectUsable()
		p.expect("file", "content")
	}
	p.tearDown()
	s.release()
}

// makesFilesystems reports whether the plugin makes what is mounted, rather than an administrator.
func (e *env) makesFilesystems(spec *volume.Spec) bool {
	return e.config.NewSpec == nil || spec.PersistentVolume == nil && e.config.Lifetime != LifetimeOfStorage
}

func noSetuidNoDevices(e *env) {
	spec := e.newSpec()
	if e.config.PlainDirectory || !e.makesFilesystems(spec) {
		e.t.Skipf("nothing is mounted at the pod's path, or the storage is given by an administrator")
	}
	s := e.ready(spec)
	p := s.forPod().setUp()
	for _, path := range []string{p.path, s.stagePath} {
		for _, m := range e.mountsAt(path) {
			for _, option := range []string{"nosuid", "nodev"} {
				if !slices.Contains(m.Options, option) {
					e.broken("the mount at %s is not %s: its options are %v", path, option, m.Options)
				}
			}
		}
	}
	p.tearDown()
	s.release()
}

// changer is a World in which modes of files can be changed.
type changer interface {
	// Chmod changes the mode of what is at name; errors are those of os.Chmod.
	Chmod(name string, mode fs.FileMode) error
}

// giver is a World in which files can be given to a group.
type giver interface {
	owner
	// Give makes gid the group of what is at name.
	Give(name string, gid int64) error
}

func rootKeepsItsMode(e *env) {
	world, ok := e.world.(changer)
	s := e.ready(e.newSpec())
	p := s.forPod().setUp()
	if !ok || p.hasOwnContent() || p.readOnly() {
		e.t.Skipf("Config.World has no method Chmod, or the content is not the pod's")
	}
	if mode := p.rootMode(); !e.config.PlainDirectory && e.makesFilesystems(s.spec) && mode&0o555 != 0o555 {
		e.broken("the root at %s has mode %v, so that not all users can enter it", p.path, mode)
	}
	const mode = fs.ModeSetgid | 0o750
	if err := world.Chmod(p.path, mode); err != nil {
		e.broken("changing the mode of %s: %v", p.path, err)
	}
	give, canGive := e.world.(giver)
	canGive = canGive && give.CanGive()
	if canGive {
		e.must("giving the root to a group", give.Give(p.path, fsGroup))
		_ = world.Chmod(p.path, mode) // which giving may have changed
	}
	want := p.rootMode()
	users := []*podVolume{p}
	if e.config.Shared {
		users = append(users, s.forPod())
	}
	for _, user := range users {
		user.setUp()
		if got := user.rootMode(); got != want {
			e.broken("a pod has made the mode of the root %v, and after the next SetUp it is %v", want, got)
		}
		if canGive {
			if gid, _, err := give.Group(user.path); err != nil || gid != fsGroup {
				e.broken("a pod has given the root to group %d, and after the next SetUp it is group %d: %v", fsGroup, gid, err)
			}
		}
	}
	for _, user := range users {
		user.tearDown()
	}
	s.release()
}

// rootMode is the mode of the volume's root.
func (p *podVolume) rootMode() fs.FileMode {
	p.e.t.Helper()
	info, err := p.e.world.Lstat(filepath.Join(p.path))
	if err != nil {
		p.e.broken("looking at the root of the volume: %v", err)
	}
	return info.Mode() & (fs.ModePerm | fs.ModeSetgid)
}

// forPodOf is forPod for a pod that has other volumes too.
func (s *staged) forPodOf(pod *v1.Pod) *podVolume {
	s.e.t.Helper()
	p := s.forPod()
	p.pod = pod
	p.renew()
	return p
}
