package volumetest

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

func expandCases() []Case {
	return []Case{
		{
			Rule: "E1", Group: "expand", Name: "storage grows",
			Sentence: "ExpandVolumeDevice MUST return a size that is at least the requested one, and MUST succeed again, also by a new value of the plugin.",
			Needs:    volume.CapProvision | volume.CapExpand, run: storageGrows,
		},
		{
			Rule: "E2", Group: "expand", Name: "storage does not shrink",
			Sentence: "ExpandVolumeDevice MUST NOT shrink a volume. For a smaller size it MUST return an error or the size that the volume has. The filesystem MUST keep its size, also when it is set up again, and the content MUST be unchanged.",
			Needs:    volume.CapProvision | volume.CapExpand, run: storageDoesNotShrink,
		},
		{
			Rule: "E3", Group: "expand", Name: "volume grows on the node",
			Sentence: "After NodeExpand has returned true the volume MUST have, by statfs, at least three quarters of the new size, also after a teardown and a new set-up, and its content MUST be unchanged.",
			Needs:    volume.CapProvision | volume.CapExpand | volume.CapNodeExpand, run: volumeGrows,
		},
		{
			Rule: "E4", Group: "expand", Name: "cancelled",
			Sentence: "ExpandVolumeDevice and NodeExpand whose context ends, before or during the call, MUST do no harm: the next call MUST finish the work, and the content MUST be unchanged.",
			Needs:    volume.CapProvision | volume.CapExpand | volume.CapNodeExpand, run: cancelledExpansion,
		},
		{
			Rule: "E5", Group: "expand", Name: "content of what is not in use",
			Sentence: "ExpandVolumeDevice of a volume that is not in use MUST leave its content unchanged.",
			Needs:    volume.CapProvision | volume.CapExpand, run: expansionKeepsContent,
		},
	}
}

// expandable is a volume that is made larger.
type expandable struct {
	e        *env
	spec     *volume.Spec
	has, now resource.Quantity // the size that it was made with, and what it has now
}

func (e *env) newExpandable() *expandable {
	e.t.Helper()
	return e.expandableFrom(e.volumeOptions())
}

func (e *env) expandableFrom(options volume.VolumeOptions) *expandable {
	e.t.Helper()
	pv := e.provision(options)
	size := pv.Spec.Capacity[v1.ResourceStorage]
	return &expandable{e: e, spec: volume.NewSpecFromPersistentVolume(pv, false), has: size, now: size}
}

// times returns n times the first size.
func (g *expandable) times(n int64) resource.Quantity {
	return *resource.NewQuantity(n*g.has.Value(), resource.BinarySI)
}

func (g *expandable) tryExpand(ctx context.Context, size resource.Quantity) (resource.Quantity, error) {
	g.e.t.Helper()
	plugin, err := g.e.registry.FindExpandablePluginBySpec(g.spec)
	g.e.must("finding what expands", err)
	return plugin.ExpandVolumeDevice(ctx, g.spec, size, g.now)
}

// expand grows the storage.
func (g *expandable) expand(size resource.Quantity) {
	g.e.t.Helper()
	got, err := g.tryExpand(g.e.ctx(), size)
	g.e.must("ExpandVolumeDevice", err)
	if got.Cmp(size) < 0 {
		g.e.broken("ExpandVolumeDevice returned %s where %s was asked for", got.String(), size.String())
	}
	g.now = got
}

func storageGrows(e *env) {
	g := e.newExpandable()
	g.expand(g.times(2))
	g.expand(g.times(2))
	e.crash()
	g.expand(g.times(2))
	g.expand(g.times(3))
}

func storageDoesNotShrink(e *env) {
	g := e.newExpandable()
	g.expand(g.times(2))
	before := int64(0)
	e.use(g.spec, func(h holding) {
		h.put(contentMark + "content")
		if p, ok := h.(*podVolume); ok && e.capabilities.Has(volume.CapNodeExpand) {
			if err := g.tryExpandOnNode(e.ctx(), p.s, p); !errors.Is(err, volume.ErrInUse) {
				e.must("NodeExpand", err)
			}
		}
		before = capacityOf(h)
		got, err := g.tryExpand(e.ctx(), g.has)
		if err == nil && got.Cmp(g.times(2)) < 0 {
			e.broken("ExpandVolumeDevice made a volume of %s one of %s", g.now.String(), got.String())
		}
		h.holds(contentMark + "content")
	})
	e.use(g.spec, func(h holding) {
		if after := capacityOf(h); after < before {
			e.broken("the filesystem had %d bytes, and %d after less was asked for", before, after)
		}
		if e.config.Lifetime == LifetimeOfStorage {
			h.holds(contentMark + "content")
		}
	})
}

// capacityOf is what statfs tells of files, and 0 of a device.
func capacityOf(h holding) int64 {
	if p, ok := h.(*podVolume); ok {
		return p.capacity()
	}
	return 0
}

func expansionKeepsContent(e *env) {
	e.requireLasting()
	e.eachMode(func(newOptions func() volume.VolumeOptions) {
		g := e.expandableFrom(newOptions())
		e.fill(g.spec, "content")
		g.expand(g.times(2))
		e.expectContent(g.spec, "content")
	})
}

// sizer is a World that tells what statfs does.
type sizer interface {
	// Capacity returns the size in bytes of the filesystem at name.
	Capacity(name string) (bytes int64, err error)
}

func volumeGrows(e *env) {
	world, ok := e.world.(sizer)
	if !ok {
		e.t.Skipf("Config.World has no method Capacity: the size of a filesystem is unknown")
	}
	g := e.newExpandable()
	s := e.ready(g.spec)
	p := s.forPod().setUp()
	p.write("file", "content")
	before, err := world.Capacity(p.path)
	if err != nil {
		e.t.Fatalf("asking for the capacity of %s: %v", p.path, err)
	}
	g.expand(g.times(4))
	for range 2 {
		s, p = g.expandOnNode(s, p)
		if after, err := world.Capacity(p.path); err != nil || after <= before {
			e.broken("the filesystem had %d bytes and has %d: %v", before, after, err)
		}
		p.expectCapacity(g.now.Value())
		p.expect("file", "content")
		e.crash()
	}
	p.tearDown()
	s.release()
	s = e.ready(g.spec)
	p = s.forPod().setUp()
	p.expectCapacity(g.now.Value())
	if e.config.Lifetime == LifetimeOfStorage {
		p.expect("file", "content")
	}
	p.tearDown()
	s.release()
}

// expandOnNode grows the volume while it is mounted. Where that cannot be done while it is in use it is staged anew.
func (g *expandable) expandOnNode(s *staged, p *podVolume) (*staged, *podVolume) {
	g.e.t.Helper()
	err := g.tryExpandOnNode(g.e.ctx(), s, p)
	if errors.Is(err, volume.ErrInUse) {
		p.tearDown()
		s.release()
		s = g.e.ready(g.spec)
		p = s.forPod().setUp()
		err = g.tryExpandOnNode(g.e.ctx(), s, p)
	}
	g.e.must("NodeExpand", err)
	return s, p
}

// errNotGrown is what NodeExpand says that returns false.
var errNotGrown = errors.New("it returned false and no error")

func (g *expandable) tryExpandOnNode(ctx context.Context, s *staged, p *podVolume) error {
	g.e.t.Helper()
	plugin, err := g.e.registry.FindNodeExpandablePluginBySpec(g.spec)
	g.e.must("finding what expands on the node", err)
	grown, err := plugin.NodeExpand(ctx, volume.NodeResizeOptions{
		VolumeSpec: g.spec, DevicePath: s.devicePath, DeviceMountPath: p.path, DeviceStagePath: s.stagePath,
		NewSize: g.now, OldSize: g.has,
	})
	if err == nil && !grown {
		return errNotGrown
	}
	return err
}

func cancelledExpansion(e *env) {
	g := e.newExpandable()
	s := e.ready(g.spec)
	p := s.forPod().setUp()
	p.write("file", "content")
	size, onStorage, onNode := int64(1), time.Duration(0), time.Duration(0) // how long a whole call takes
	for _, cut := range []func(whole time.Duration) (context.Context, context.CancelFunc){
		func(time.Duration) (context.Context, context.CancelFunc) { return e.ended(), func() {} },
		func(whole time.Duration) (context.Context, context.CancelFunc) {
			return e.endsAfter(whole, midwayPoints/4)
		},
		func(whole time.Duration) (context.Context, context.CancelFunc) {
			return e.endsAfter(whole, midwayPoints/2)
		},
	} {
		size++
		ctx, cancel := cut(onStorage)
		_, err := g.tryExpand(ctx, g.times(size))
		cancel()
		e.awaitLost(err)
		onStorage = timeOf(func() { g.expand(g.times(size)) })
		ctx, cancel = cut(onNode)
		err = g.tryExpandOnNode(ctx, s, p)
		cancel()
		e.awaitLost(err)
		onNode = timeOf(func() { s, p = g.expandOnNode(s, p) })
		p.expect("file", "content")
	}
	p.tearDown()
	s.release()
}
