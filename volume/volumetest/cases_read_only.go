package volumetest

import (
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

func readOnlyCases() []Case {
	return []Case{{
		Rule: "R1", Group: "read-only", Name: "writes are refused",
		Sentence: "GetAttributes of a volume that is requested read-only MUST say so, and where it is mounted the kernel MUST refuse writes through the pod's path.",
		run:      readOnlyRefusesWrites,
	}}
}

func readOnlyRefusesWrites(e *env) {
	s := e.ready(e.readOnlySpec())
	p := s.forPod().setUp()
	p.expectMountedReadOnly()
	// A second set-up, as after a crash, must not make it writable.
	p.setUp()
	p.expectMountedReadOnly()
	p.tearDown()
	s.release()
}

func (p *podVolume) expectMountedReadOnly() {
	p.e.t.Helper()
	if !p.readOnly() {
		p.e.broken("GetAttributes says that the volume is writable")
	}
	if p.e.config.PlainDirectory {
		return
	}
	p.e.expectMounted(p.path)
	if m := p.e.mountsAt(p.path)[0]; !m.ReadOnly() {
		p.e.broken("the mount at %s has options %v and %v", p.path, m.Options, m.SuperOptions)
	}
	if err := p.e.world.WriteFile(p.path+"/file", []byte("content"), 0o644); err == nil {
		p.e.broken("a file was written through %s", p.path)
	}
}

// readOnlySpec returns a read-only spec.
func (e *env) readOnlySpec() *volume.Spec {
	e.t.Helper()
	if e.config.NewReadOnlySpec != nil {
		return e.config.NewReadOnlySpec(e.t)
	}
	if e.config.NewSpec == nil {
		return e.provisionedReadOnly()
	}
	spec := copySpec(e.newSpec())
	if spec.PersistentVolume != nil {
		spec.ReadOnly = true
		return spec
	}
	if !setReadOnly(&spec.Volume.VolumeSource) {
		e.t.Skipf("the source of volume %q has no field for read-only: give Config.NewReadOnlySpec", spec.Name())
	}
	return spec
}

func (e *env) provisionedReadOnly() *volume.Spec {
	spec := e.newSpec()
	spec.ReadOnly = true
	return spec
}

// setReadOnly makes an inline source read-only. It returns false if the source has no field for that.
func setReadOnly(source *v1.VolumeSource) bool {
	readOnly := true
	switch {
	case source.CSI != nil:
		source.CSI.ReadOnly = &readOnly
	case source.FlexVolume != nil:
		source.FlexVolume.ReadOnly = true
	case source.NFS != nil:
		source.NFS.ReadOnly = true
	default:
		return false
	}
	return true
}
