package volumetest

import "github.com/volumekit/volumekit/volume"

func recycleCases() []Case {
	return []Case{
		{
			Rule: "Y1", Group: "recycle", Name: "recycle twice",
			Sentence: "Recycle MUST delete the content and leave the volume usable, and MUST succeed again.",
			Needs:    volume.CapRecycle, run: recycleTwice,
		},
		{
			Rule: "Y2", Group: "recycle", Name: "cancelled",
			Sentence: "Recycle whose context ends, before or during the call, MUST do no harm: the next call MUST finish the work.",
			Needs:    volume.CapRecycle, run: cancelledRecycling,
		},
	}
}

func recycleTwice(e *env) {
	spec := e.newSpec()
	if spec.PersistentVolume == nil {
		e.t.Skipf("volume %q is no PersistentVolume: only these are recycled", spec.Name())
	}
	s := e.ready(spec)
	p := s.forPod().setUp()
	p.write("file", "content")
	p.tearDown()
	s.release()
	for range 2 {
		plugin, err := e.registry.FindRecyclablePluginBySpec(spec)
		e.must("finding the recycler", err)
		e.must("Recycle", plugin.Recycle(e.ctx(), spec.Name(), spec, func(string, string) {}))
		e.crash()
	}
	s = e.ready(spec)
	p = s.forPod().setUp()
	p.expectEmptyOf("file")
	p.write("file", "of the next claim")
	p.tearDown()
	s.release()
}
