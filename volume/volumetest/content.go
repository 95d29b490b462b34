package volumetest

import (
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// Lifetime says how long what a pod writes to a volume lasts.
type Lifetime int

// The lifetimes of content.
const (
	// LifetimeUnknown is not said. It suits volumes that are inline in a pod alone: for a PersistentVolume the suite fails.
	LifetimeUnknown Lifetime = iota
	// LifetimeOfPod ends with the pod.
	LifetimeOfPod
	// LifetimeOfStaging lasts while the volume is staged, or some pod has it, as in memory.
	LifetimeOfStaging
	// LifetimeOfStorage lasts until the volume is deleted or recycled.
	LifetimeOfStorage
)

// requireLasting skips a case that looks at what was written after the volume was taken away.
func (e *env) requireLasting() {
	e.t.Helper()
	if e.config.Lifetime != LifetimeOfStorage {
		e.t.Skipf("Config.Lifetime is not LifetimeOfStorage: content does not outlive the set-up")
	}
}

// holding is a volume that is in use and can be written to: files or a device.
type holding interface {
	// put replaces the content.
	put(content string)
	// holds fails the case unless the content is that.
	holds(content string)
	// isBlank fails the case where there is content.
	isBlank()
}

func (p *podVolume) put(content string) {
	p.e.t.Helper()
	p.write("file", content)
}

func (p *podVolume) holds(content string) {
	p.e.t.Helper()
	p.expect("file", content)
}

func (p *podVolume) isBlank() {
	p.e.t.Helper()
	p.expectEmptyOf("file")
}

// exists reports whether the world has the device: in memory there may be none.
func (m *mapped) exists() bool {
	_, err := m.s.e.world.Lstat(m.device)
	return err == nil
}

func (m *mapped) put(content string) {
	m.s.e.t.Helper()
	if !m.exists() {
		return
	}
	if err := m.s.e.world.WriteFile(m.device, []byte(content), 0); err != nil {
		m.s.e.broken("writing to %s: %v", m.device, err)
	}
}

func (m *mapped) begins(content string) bool {
	m.s.e.t.Helper()
	got, err := m.s.e.world.ReadFile(m.device)
	if err != nil {
		m.s.e.broken("reading from %s: %v", m.device, err)
	}
	return len(got) >= len(content) && string(got[:len(content)]) == content
}

func (m *mapped) holds(content string) {
	m.s.e.t.Helper()
	if !m.exists() {
		if m.wasThere {
			m.s.e.broken("%s is gone", m.device)
		}
		return
	}
	if !m.begins(content) {
		m.s.e.broken("%s does not begin with what was written to volume %q", m.device, m.s.spec.Name())
	}
}

func (m *mapped) isBlank() {
	m.s.e.t.Helper()
	if m.exists() && m.begins(contentMark) {
		m.s.e.broken("%s holds what was written to another volume", m.device)
	}
}

// contentMark begins all that the suite writes to devices.
const contentMark = "volumetest: "

// use attaches, stages and sets the volume up, or maps it, and takes it all away afterwards.
func (e *env) use(spec *volume.Spec, do func(h holding)) {
	e.t.Helper()
	if volume.IsBlock(spec) {
		s := e.attached(spec)
		m := s.mapFor(newPod())
		do(m)
		m.unmap()
		s.release()
		return
	}
	s := e.ready(spec)
	p := s.forPod().setUp()
	do(p)
	p.tearDown()
	s.release()
}

// fill writes to a volume that no pod uses, expectContent reads it, and expectBlank looks for what was written to others.
func (e *env) fill(spec *volume.Spec, content string) {
	e.t.Helper()
	e.use(spec, func(h holding) { h.put(contentMark + content) })
}

func (e *env) expectContent(spec *volume.Spec, content string) {
	e.t.Helper()
	e.use(spec, func(h holding) { h.holds(contentMark + content) })
}

func (e *env) expectBlank(spec *volume.Spec) {
	e.t.Helper()
	e.use(spec, func(h holding) { h.isBlank() })
}

// eachMode does something with what is provisioned, as a filesystem and, where the plugin can, as a block device.
func (e *env) eachMode(do func(options func() volume.VolumeOptions)) {
	e.t.Helper()
	do(e.volumeOptions)
	if !e.capabilities.Has(volume.CapBlock) || modeOf(e.volumeOptions().PVC.Spec.VolumeMode) == v1.PersistentVolumeBlock {
		return
	}
	mode := v1.PersistentVolumeBlock
	do(func() volume.VolumeOptions {
		options := e.volumeOptions()
		options.PVC = options.PVC.DeepCopy()
		options.PVC.Spec.VolumeMode = &mode
		return options
	})
}

// specOf returns the spec of a new volume.
func (e *env) specOf(options volume.VolumeOptions) *volume.Spec {
	e.t.Helper()
	return volume.NewSpecFromPersistentVolume(e.provision(options), false)
}

// alike changes options so that the name of their volume begins with name.
func alike(options volume.VolumeOptions, name string) volume.VolumeOptions {
	options.PVName = name + "-2"
	options.PVC = options.PVC.DeepCopy()
	options.PVC.Name = options.PVName
	return options
}

// newSpecsAlike returns two specs of storage of their own, the name of one of which begins with that of the other, unless the
// plugin's own content depends on the names.
func (e *env) newSpecsAlike() (one, two *volume.Spec) {
	e.t.Helper()
	if e.config.NewSpec == nil {
		options := e.volumeOptions()
		return e.specOf(options), e.specOf(alike(e.volumeOptions(), options.PVName))
	}
	one, two = e.newSpec(), copySpec(e.newSpec())
	if e.config.Content == nil {
		rename(two, one.Name()+"-2")
	}
	return one, two
}
