package volumetest

import (
	"context"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// staged is a volume that is ready to be set up on this node: attached and staged where it has to be.
type staged struct {
	e          *env
	spec       *volume.Spec
	volumeName string
	attached   bool
	stagePath  string
	devicePath string
}

// ready makes a volume ready, as the executor does before the first pod.
func (e *env) ready(spec *volume.Spec) *staged {
	e.t.Helper()
	s := e.attached(spec)
	if yes, err := e.registry.IsDeviceMountable(spec); err != nil {
		e.broken("CanDeviceMount: %v", err)
	} else if yes {
		s.stage()
	}
	return s
}

// attached attaches a volume where it has to be.
func (e *env) attached(spec *volume.Spec) *staged {
	e.t.Helper()
	s := &staged{e: e, spec: spec}
	yes, err := e.registry.IsAttachable(spec)
	e.must("CanAttach", err)
	if yes {
		s.attach()
	}
	return s
}

func (s *staged) attach() {
	s.e.t.Helper()
	var err error
	s.volumeName, err = s.e.plugin.GetVolumeName(s.spec)
	s.e.must("GetVolumeName", err)
	attacher := s.e.attacher(s.spec)
	s.e.later(func() { _ = s.e.detacher().Detach(s.e.afterwards(), s.volumeName, s.e.config.NodeName) })
	path, err := attacher.Attach(s.e.ctx(), s.spec, s.e.config.NodeName)
	s.e.must("Attach", err)
	s.attached = true
	s.devicePath, err = attacher.WaitForAttach(s.e.ctx(), s.spec, path, newPod())
	s.e.must("WaitForAttach", err)
}

func (s *staged) stage() {
	s.e.t.Helper()
	mounter := s.e.deviceMounter(s.spec)
	var err error
	s.stagePath, err = mounter.GetDeviceMountPath(s.spec)
	s.e.must("GetDeviceMountPath", err)
	s.e.later(func() { _ = s.e.deviceUnmounter().UnmountDevice(s.e.afterwards(), s.stagePath) })
	s.mountDevice()
}

// mountDevice stages once more.
func (s *staged) mountDevice() {
	s.e.t.Helper()
	err := s.e.deviceMounter(s.spec).MountDevice(s.e.ctx(), s.spec, s.devicePath, s.stagePath, volume.DeviceMounterArgs{})
	s.e.must("MountDevice", err)
}

// release undoes ready, as the executor does after the last pod.
func (s *staged) release() {
	s.e.t.Helper()
	if s.stagePath != "" {
		s.e.must("UnmountDevice", s.e.deviceUnmounter().UnmountDevice(s.e.ctx(), s.stagePath))
	}
	if s.attached {
		s.e.must("Detach", s.e.detacher().Detach(s.e.ctx(), s.volumeName, s.e.config.NodeName))
	}
}

// podVolume is a volume that is set up, or about to be, for one pod.
type podVolume struct {
	e       *env
	s       *staged
	spec    *volume.Spec
	pod     *v1.Pod
	mounter volume.Mounter
	path    string
}

// forPod returns the volume for a new pod, not yet set up.
func (s *staged) forPod() *podVolume {
	s.e.t.Helper()
	p := &podVolume{e: s.e, s: s, spec: s.spec, pod: newPod()}
	p.renew()
	p.e.later(func() {
		if u, err := p.e.plugin.NewUnmounter(p.spec.Name(), p.pod.UID); err == nil {
			_ = u.TearDown(p.e.afterwards())
		}
	})
	return p
}

// renew asks the plugin of now for a mounter.
func (p *podVolume) renew() {
	p.e.t.Helper()
	mounter, err := p.e.plugin.NewMounter(p.spec, p.pod)
	p.e.must("NewMounter", err)
	p.mounter, p.path = mounter, mounter.GetPath()
}

// setUp sets the volume up.
func (p *podVolume) setUp() *podVolume {
	p.e.t.Helper()
	p.e.must("SetUp", p.trySetUp(p.e.ctx()))
	return p
}

func (p *podVolume) trySetUp(ctx context.Context) error {
	return p.trySetUpWith(ctx, volume.MounterArgs{})
}

func (p *podVolume) trySetUpWith(ctx context.Context, args volume.MounterArgs) error {
	if checker, ok := p.mounter.(volume.MountChecker); ok {
		if err := checker.CanMount(ctx); err != nil {
			return err
		}
	}
	args.PodUID = string(p.pod.UID)
	return p.mounter.SetUp(ctx, args)
}

// tearDown takes the volume away, by its name and the pod's UID alone.
func (p *podVolume) tearDown() {
	p.e.t.Helper()
	p.e.must("TearDown", p.unmounter().TearDown(p.e.ctx()))
}

func (p *podVolume) unmounter() volume.Unmounter {
	p.e.t.Helper()
	unmounter, err := p.e.plugin.NewUnmounter(p.spec.Name(), p.pod.UID)
	p.e.must("NewUnmounter", err)
	return unmounter
}

// readOnly reports whether the plugin has set the volume up read-only, though it was not asked to.
func (p *podVolume) readOnly() bool { return p.mounter.GetAttributes().ReadOnly }

// hasOwnContent reports whether the content is the plugin's own, and not the suite's.
func (p *podVolume) hasOwnContent() bool { return p.e.config.Content != nil }

// aFile is the name of a file that is in the volume once it was written to, or has content of its own.
func (p *podVolume) aFile() string {
	if p.hasOwnContent() {
		for name := range p.e.config.Content(p.spec, p.pod) {
			return name
		}
	}
	return "file"
}

// expectOwnContent fails unless the volume holds what Config.Content says, where it says something.
func (p *podVolume) expectOwnContent() {
	p.e.t.Helper()
	if p.hasOwnContent() {
		for name, content := range p.e.config.Content(p.spec, p.pod) {
			p.expectFile(name, content)
		}
	}
}

// write writes a file of the volume. A volume that is always read-only skips the case, unless its content is its own: that
// is then looked at.
func (p *podVolume) write(name, content string) {
	p.e.t.Helper()
	if p.hasOwnContent() {
		p.expectOwnContent()
		return
	}
	if p.readOnly() {
		p.e.t.Skipf("the volume is read-only, so that nothing can be written to look for: give a writable spec, or Config.Content")
	}
	if err := p.e.world.WriteFile(filepath.Join(p.path, name), []byte(content), 0o644); err != nil {
		p.e.broken("writing through %s: %v", p.path, err)
	}
}

// expect fails unless the file of the volume, which was written before, has this content; or unless the volume has the content
// that is its own.
func (p *podVolume) expect(name, content string) {
	p.e.t.Helper()
	if p.hasOwnContent() {
		p.expectOwnContent()
		return
	}
	p.expectFile(name, content)
}

func (p *podVolume) expectFile(name, content string) {
	p.e.t.Helper()
	got, err := p.e.world.ReadFile(filepath.Join(p.path, name))
	if err != nil {
		p.e.broken("reading through %s: %v", p.path, err)
	}
	if string(got) != content {
		p.e.broken("%s holds %q instead of %q", filepath.Join(p.path, name), got, content)
	}
}

// expectEmptyOf fails when the file is in the volume.
func (p *podVolume) expectEmptyOf(name string) {
	p.e.t.Helper()
	if p.e.exists(filepath.Join(p.path, name)) {
		p.e.broken("%s is still there", filepath.Join(p.path, name))
	}
}

// expectUsable fails unless the volume is there, and mounted where it should be.
func (p *podVolume) expectUsable() {
	p.e.t.Helper()
	if !p.e.exists(p.path) {
		p.e.broken("nothing is at %s after SetUp", p.path)
	}
	if !p.e.config.PlainDirectory {
		p.e.expectMounted(p.path)
	}
}

// expectGone fails unless the set-up has left no trace.
func (p *podVolume) expectGone() {
	p.e.t.Helper()
	if mounts := p.e.mountsAt(p.path); len(mounts) > 0 {
		p.e.broken("%d mounts are left at %s", len(mounts), p.path)
	}
	if p.e.beneathRoot(p.path) && p.e.exists(p.path) {
		p.e.broken("%s is left", p.path)
	}
}
