package volumetest

import (
	"context"

	"github.com/volumekit/volumekit/volume"
)

// cut makes a call whose context has ended, and then calls whose context ends in one of n moments of a call that takes as
// long as again does. After each it waits for what was abandoned; again must then do the whole work, and undo take it back.
func (e *env) cut(n int, call func(context.Context) error, again, undo func()) {
	e.t.Helper()
	e.awaitLost(call(e.ended()))
	whole := timeOf(again)
	undo()
	for moment := range n {
		ctx, cancel := e.endsAfter(whole, moment*midwayPoints/n)
		err := call(ctx)
		cancel()
		e.awaitLost(err)
		again()
		undo()
	}
}

func cancelledAttach(e *env) {
	s := e.attachable()
	attach := func(ctx context.Context) error {
		_, err := e.attacher(s.spec).Attach(ctx, s.spec, e.config.NodeName)
		return err
	}
	detach := func(ctx context.Context) error { return e.detacher().Detach(ctx, s.volumeName, e.config.NodeName) }
	attachWhole := func() {
		e.must("Attach after one that was cancelled", attach(e.ctx()))
		if !s.isAttached() {
			e.broken("VolumesAreAttached does not list the volume after Attach")
		}
	}
	detachWhole := func() {
		e.must("Detach after one that was cancelled", detach(e.ctx()))
		if s.isAttached() {
			e.broken("VolumesAreAttached lists the volume after Detach")
		}
	}
	detachWhole()
	e.cut(4, attach, attachWhole, detachWhole)
	attachWhole()
	e.cut(4, detach, detachWhole, attachWhole)
	s.release()
}

func cancelledStaging(e *env) {
	s := e.stageable()
	mount := func(ctx context.Context) error {
		return e.deviceMounter(s.spec).MountDevice(ctx, s.spec, s.devicePath, s.stagePath, volume.DeviceMounterArgs{})
	}
	unmount := func(ctx context.Context) error { return e.deviceUnmounter().UnmountDevice(ctx, s.stagePath) }
	mountWhole := func() {
		e.must("MountDevice after one that was cancelled", mount(e.ctx()))
		e.expectMounted(s.stagePath)
	}
	unmountWhole := func() {
		e.must("UnmountDevice after one that was cancelled", unmount(e.ctx()))
		if len(e.mountsAt(s.stagePath)) > 0 || e.exists(s.stagePath) {
			e.broken("%s is left", s.stagePath)
		}
	}
	unmountWhole()
	e.cut(4, mount, mountWhole, unmountWhole)
	mountWhole()
	e.cut(4, unmount, unmountWhole, mountWhole)
	s.release()
}

func cancelledProvisioning(e *env) {
	options := e.volumeOptions()
	provision := func(ctx context.Context) error {
		_, err := e.provisioner(options).Provision(ctx, nil, nil)
		return err
	}
	var spec *volume.Spec
	provisionWhole := func() { spec = volume.NewSpecFromPersistentVolume(e.provision(options), false) }
	deleteWhole := func() { e.must("Delete after one that was cancelled", e.deleter(spec).Delete(e.ctx())) }
	e.cut(2, provision, provisionWhole, deleteWhole)
	provisionWhole()
	e.cut(2, func(ctx context.Context) error { return e.deleter(spec).Delete(ctx) }, deleteWhole, provisionWhole)
}

func cancelledMapping(e *env) {
	s := e.attached(e.blockSpec())
	m := s.mapFor(newPod())
	device := m.device
	mapWhole := func() {
		e.must("SetUpDevice and MapPodDevice after ones that were cancelled", m.tryMap(e.ctx()))
		if m.device != device {
			e.broken("the device is at %s and then at %s", device, m.device)
		}
	}
	unmapWhole := func() {
		e.must("UnmapPodDevice and TearDownDevice after ones that were cancelled", m.takeAway(e.ctx()))
	}
	unmapWhole()
	e.cut(4, m.tryMap, mapWhole, unmapWhole)
	mapWhole()
	e.cut(4, m.takeAway, unmapWhole, mapWhole)
	unmapWhole()
	s.release()
}

func cancelledRecycling(e *env) {
	spec := e.newSpec()
	if spec.PersistentVolume == nil {
		e.t.Skipf("volume %q is no PersistentVolume: only these are recycled", spec.Name())
	}
	plugin, err := e.registry.FindRecyclablePluginBySpec(spec)
	e.must("finding the recycler", err)
	use := func(do func(p *podVolume)) {
		s := e.ready(spec)
		p := s.forPod().setUp()
		do(p)
		p.tearDown()
		s.release()
	}
	fill := func() { use(func(p *podVolume) { p.write("file", "content") }) }
	recycle := func(ctx context.Context) error {
		return plugin.Recycle(ctx, spec.Name(), spec, func(string, string) {})
	}
	recycleWhole := func() { e.must("Recycle after one that was cancelled", recycle(e.ctx())) }
	fill()
	e.cut(2, recycle, recycleWhole, fill)
	recycleWhole()
	use(func(p *podVolume) { p.expectEmptyOf("file") })
}
