package volumetest

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/volumekit/volumekit/volume"
)

func reuseCase() Case {
	return Case{
		Rule: "M17", Group: "mount", Name: "SetUp of what can be reused",
		Sentence: "If CanReuse is true, SetUp and MountDevice by a new value of the plugin with the same arguments MUST keep the mounts, their options, and the content with its mode and group. GetAttributes MUST be the same before and after that SetUp.",
		Needs:    volume.CapReuse, run: reusedAsItIs,
	}
}

// reusedAsItIs makes the plugin set up again what a manager would use as it is, and looks what that has changed.
func reusedAsItIs(e *env) {
	s := e.ready(e.newSpec())
	if yes, err := e.registry.CanReuse(s.spec); err != nil {
		e.broken("CanReuse: %v", err)
	} else if !yes {
		s.release()
		e.t.Skipf("CanReuse is false for the spec that the suite was given")
	}
	args := e.groupArgs()
	p := s.forPod()
	e.must("SetUp", p.trySetUpWith(e.ctx(), args))
	p.write("file", "content")
	made, before := p.mounter.GetAttributes(), p.lookOf()
	e.crash()
	p.renew()
	if now := p.mounter.GetAttributes(); now != made {
		e.broken("GetAttributes is %+v before SetUp and was %+v after the first one", now, made)
	}
	if s.stagePath != "" {
		s.mountDevice()
	}
	e.must("SetUp", p.trySetUpWith(e.ctx(), args))
	if now := p.mounter.GetAttributes(); now != made {
		e.broken("GetAttributes is %+v after SetUp and was %+v before it", now, made)
	}
	if after := p.lookOf(); after != before {
		e.broken("SetUp has changed what was there:\nbefore:\n%safter:\n%s", before, after)
	}
	p.tearDown()
	s.release()
}

// groupArgs asks for a group where the plugin can be asked for one.
func (e *env) groupArgs() volume.MounterArgs {
	world, ok := e.world.(owner)
	if !e.config.FSGroup || !ok || !world.CanGive() {
		return volume.MounterArgs{}
	}
	group := fsGroup
	return volume.MounterArgs{FsGroup: &group}
}

// lookOf tells all that a set-up could change: the mounts, and what is in the root of the volume.
func (p *podVolume) lookOf() string {
	p.e.t.Helper()
	var look strings.Builder
	for _, path := range []string{p.s.stagePath, p.path} {
		for _, m := range p.e.mountsAt(path) {
			fmt.Fprintf(&look, "mount %d at %s: %s of %s, %v, filesystem %v\n", m.ID, m.Path, m.FSType, m.Source, m.Options, m.SuperOptions)
		}
	}
	names := p.e.namesIn(p.path)
	slices.Sort(names)
	for _, name := range append([]string{"."}, names...) {
		p.e.describeFile(&look, filepath.Join(p.path, name))
	}
	return look.String()
}

func (d *directory) describeFile(look *strings.Builder, path string) {
	d.t.Helper()
	info, err := d.world.Lstat(path)
	if err != nil {
		d.broken("looking at %s: %v", path, err)
	}
	group := ""
	if world, ok := d.world.(owner); ok {
		gid, _, err := world.Group(path)
		group = fmt.Sprintf(" of group %d (%v)", gid, err)
	}
	fmt.Fprintf(look, "%s: %v%s, changed %v", path, info.Mode(), group, info.ModTime().UnixNano())
	if info.Mode().IsRegular() {
		content, err := d.world.ReadFile(path)
		fmt.Fprintf(look, ", %q (%v)", content, err)
	}
	look.WriteByte('\n')
}
