package volumetest

import (
	"github.com/volumekit/volumekit/volume"
)

func reconstructCases() []Case {
	return []Case{{
		Rule: "C1", Group: "reconstruct", Name: "spec from a directory",
		Sentence: "For the inner name and the path of a volume that is set up, ConstructVolumeSpec MUST return a spec of this plugin with that inner name. That spec MUST suffice to tear the volume down.",
		Needs:    volume.CapReconstruct,
		run:      reconstruct,
	}}
}

func reconstruct(e *env) {
	s := e.ready(e.newSpec())
	p := s.forPod().setUp()
	e.crash()
	plugin, err := e.registry.FindReconstructablePluginByName(e.plugin.GetPluginName())
	e.must("finding the plugin", err)
	found, err := plugin.ConstructVolumeSpec(p.spec.Name(), p.path)
	e.must("ConstructVolumeSpec", err)
	if found.Spec == nil || !e.plugin.CanSupport(found.Spec) {
		e.broken("ConstructVolumeSpec returned a spec that the plugin does not support")
	}
	if found.Spec.Name() != p.spec.Name() {
		e.broken("ConstructVolumeSpec called the volume %q instead of %q", found.Spec.Name(), p.spec.Name())
	}
	if _, err := e.plugin.GetVolumeName(found.Spec); err != nil {
		e.broken("GetVolumeName of the spec that ConstructVolumeSpec returned: %v", err)
	}
	p.spec = found.Spec
	p.tearDown()
	p.expectGone()
	s.release()
}
