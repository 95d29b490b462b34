package volumetest

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

func unmountCases() []Case {
	return []Case{
		{
			Rule: "U1", Group: "unmount", Name: "TearDown leaves no trace",
			Sentence: "After TearDown nothing MUST be mounted at the pod's path and the path MUST be gone, while the volume stays usable for other pods.",
			run:      tearDownOne,
		},
		{
			Rule: "U2", Group: "unmount", Name: "TearDown without SetUp",
			Sentence: "TearDown of what was never set up MUST succeed.",
			run:      tearDownWithoutSetUp,
		},
		{
			Rule: "U3", Group: "unmount", Name: "TearDown twice",
			Sentence: "A second TearDown MUST succeed.",
			run:      tearDownTwice,
		},
		{
			Rule: "U4", Group: "unmount", Name: "TearDown after a crash",
			Sentence: "TearDown by a new value of the plugin, which has the inner name and the pod's UID alone, MUST undo what an earlier value has set up.",
			run:      tearDownAfterCrash,
		},
		{
			Rule: "U5", Group: "unmount", Name: "content outlives the pod",
			Sentence: "TearDown MUST NOT delete content that outlives the pod.",
			run:      contentOutlivesPod,
		},
		{
			Rule: "U6", Group: "unmount", Name: "cancelled TearDown",
			Sentence: "TearDown with a context that has ended MUST do no harm: the next TearDown MUST finish the work.",
			run:      cancelledTearDown,
		},
		{
			Rule: "U7", Group: "unmount", Name: "TearDown cancelled midway",
			Sentence: "TearDown whose context ends while it runs MUST do no harm: the next TearDown MUST finish the work.",
			run:      cancelledInTearDown,
		},
		{
			Rule: "U8", Group: "unmount", Name: "TearDown in use",
			Sentence: "TearDown of a mount in which a file is open MUST fail and MUST leave the volume usable.",
			run:      tearDownInUse,
		},
	}
}

func tearDownOne(e *env) {
	s := e.ready(e.newSpec())
	p, q := s.forPod().setUp(), s.forPod().setUp()
	q.write("file", "content")
	p.tearDown()
	p.expectGone()
	q.expectUsable()
	q.expect("file", "content")
	q.tearDown()
	q.expectGone()
	s.release()
}

func tearDownWithoutSetUp(e *env) {
	s := e.ready(e.newSpec())
	p := s.forPod()
	p.tearDown()
	p.expectGone()
	s.release()
}

func tearDownTwice(e *env) {
	s := e.ready(e.newSpec())
	p := s.forPod().setUp()
	p.tearDown()
	p.tearDown()
	p.expectGone()
	s.release()
}

func tearDownAfterCrash(e *env) {
	s := e.ready(e.newSpec())
	p := s.forPod().setUp()
	e.crash()
	p.tearDown()
	p.expectGone()
	s.release()
}

func contentOutlivesPod(e *env) {
	if !e.config.Shared {
		e.t.Skipf("Config.Shared is false: pods do not share the volume, so that its content ends with the pod")
	}
	s := e.ready(e.newSpec())
	first := s.forPod().setUp()
	first.write("file", "content")
	first.tearDown()
	second := s.forPod().setUp()
	second.expect("file", "content")
	second.tearDown()
	s.release()
}

func cancelledTearDown(e *env) {
	s := e.ready(e.newSpec())
	p := s.forPod().setUp()
	p.tearDownAfterEnded(p.unmounter().TearDown(e.ended()))
	s.release()
}

// tearDownAfterEnded takes the volume away after a TearDown that returned err when its context had ended.
func (p *podVolume) tearDownAfterEnded(err error) {
	p.e.t.Helper()
	if err == nil {
		p.expectGone()
	}
	p.e.awaitLost(err)
	p.tearDown()
	p.expectGone()
}

func cancelledInTearDown(e *env) {
	s := e.ready(e.newSpec())
	first := s.forPod().setUp()
	whole := timeOf(first.tearDown)
	for n := range midways {
		p := s.forPod().setUp()
		ctx, cancel := e.endsAfter(whole, n)
		err := p.unmounter().TearDown(ctx)
		cancel()
		p.tearDownAfterEnded(err)
	}
	s.release()
}

// holder is a World in which a file can be kept open, as a process of the pod would.
type holder interface {
	// Hold opens what is at name until release is called.
	Hold(name string) (release func(), err error)
}

func tearDownInUse(e *env) {
	world, ok := e.world.(holder)
	if !ok || e.config.PlainDirectory {
		e.t.Skipf("nothing is mounted at the pod's path, or Config.World has no method Hold: a mount cannot be held")
	}
	s := e.ready(e.newSpec())
	p := s.forPod().setUp()
	p.write("file", "content")
	release, err := world.Hold(filepath.Join(p.path, "file"))
	if err != nil {
		e.t.Fatalf("opening a file of the volume: %v", err)
	}
	e.later(release)
	err = p.unmounter().TearDown(e.ctx())
	if err == nil {
		e.broken("TearDown has succeeded while a file of the volume was open")
	}
	p.expectUsable()
	p.expect("file", "content")
	release()
	e.awaitLost(err)
	p.tearDown()
	p.expectGone()
	s.release()
}

func readOnlyCases() []Case {
	return []Case{{
		Rule: "R1", Group: "read-only", Name: "writes are refused",
		Sentence: "A volume that is asked for read-only MUST say so in GetAttributes, and where it is mounted the kernel MUST refuse writes through the pod's path.",
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

// readOnlySpec returns a spec that asks for read-only.
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

// setReadOnly asks an inline source for read-only and reports whether it has a field for that.
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

func reconstructCases() []Case {
	return []Case{{
		Rule: "C1", Group: "reconstruct", Name: "spec from a directory",
		Sentence: "ConstructVolumeSpec MUST make of the inner name and the path of a volume that is set up a spec of this plugin with that inner name, by which it can be torn down.",
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

func metricsCases() []Case {
	return []Case{
		{
			Rule: "X1", Group: "metrics", Name: "what is measured",
			Sentence: "GetMetrics MUST return quantities that are known, not negative and not above the capacity, or an error that matches ErrUnsupported.",
			run:      metrics,
		},
		{
			Rule: "X2", Group: "metrics", Name: "what is there is counted",
			Sentence: "GetMetrics of a volume that holds a file MUST NOT say that there is no capacity, that nothing is used or that there is no inode.",
			run:      metricsCount,
		},
	}
}

// measured returns the metrics of a volume; nil where it cannot be measured.
func (p *podVolume) measured() *volume.Metrics {
	p.e.t.Helper()
	m, err := p.mounter.GetMetrics(p.e.ctx())
	switch {
	case errors.Is(err, volume.ErrUnsupported):
		p.e.t.Logf("the volume cannot be measured: %v", err)
	case errors.Is(err, fs.ErrNotExist) && !p.e.isKernel():
		p.e.t.Logf("the plugin measures a path of this machine, and the volume is in a world in memory: %v", err)
	case err != nil:
		p.e.broken("GetMetrics: %v", err)
	case m == nil:
		p.e.broken("GetMetrics returned neither metrics nor an error")
	}
	return m
}

func metricsCount(e *env) {
	s := e.ready(e.newSpec())
	p := s.forPod().setUp()
	p.write("file", strings.Repeat("content\n", 128<<10))
	if m := p.measured(); m != nil {
		for name, value := range map[string]*quantity{
			"Capacity": m.Capacity, "Used": m.Used, "Inodes": m.Inodes, "InodesUsed": m.InodesUsed,
		} {
			if value != nil && value.IsZero() {
				e.broken("%s is zero", name)
			}
		}
	}
	p.tearDown()
	s.release()
}

func metrics(e *env) {
	s := e.ready(e.newSpec())
	p := s.forPod().setUp()
	if m := p.measured(); m != nil {
		e.checkMetrics(m)
	}
	p.tearDown()
	s.release()
}

// isKernel reports whether the world is the machine.
func (e *env) isKernel() bool {
	_, ok := e.world.(kernelWorld)
	return ok
}

func (e *env) checkMetrics(m *volume.Metrics) {
	e.t.Helper()
	if m.Used == nil && m.Capacity == nil && m.Available == nil {
		e.broken("GetMetrics returned no quantity")
	}
	if m.Time.IsZero() {
		e.broken("GetMetrics does not say when it measured")
	}
	for _, row := range []struct {
		name       string
		value, top *quantity
	}{
		{"Used", m.Used, m.Capacity}, {"Available", m.Available, m.Capacity}, {"Capacity", m.Capacity, nil},
		{"InodesUsed", m.InodesUsed, m.Inodes}, {"InodesFree", m.InodesFree, m.Inodes}, {"Inodes", m.Inodes, nil},
	} {
		if row.value == nil {
			continue
		}
		if row.value.Sign() < 0 {
			e.broken("%s is %s", row.name, row.value)
		}
		if row.top != nil && row.value.Cmp(*row.top) > 0 {
			e.broken("%s is %s, above the whole %s", row.name, row.value, row.top)
		}
	}
}

func leakCases() []Case {
	return []Case{{
		Rule: "L1", Group: "leak", Name: "nothing is left",
		Sentence: "After TearDown, UnmountDevice and Detach nothing MUST be left: no mount, no directory of the pod or of staging, no goroutine, no open file, no loop device.",
		run:      nothingLeft,
	}}
}

func nothingLeft(e *env) {
	before := openFiles(e.root)
	s := e.ready(e.newSpec())
	p := s.forPod().setUp()
	_, _ = p.mounter.GetMetrics(e.ctx())
	p.tearDown()
	s.release()
	p.expectGone()
	if s.stagePath != "" && e.exists(s.stagePath) {
		e.broken("%s is left", s.stagePath)
	}
	if mounts := e.mountsBeneathRoot(); len(mounts) > 0 {
		e.broken("%d mounts are left, the first at %s", len(mounts), mounts[0].Path)
	}
	if left := goroutinesLeft(e.ctx(), e.id); left != "" {
		e.broken("goroutines are left that the plugin started:\n%s", left)
	}
	if left := openFilesLeft(e.ctx(), e.root, before); left != "" {
		e.broken("open files are left: %s", left)
	}
	if left := loopDevicesLeft(e.ctx(), e.root); left != "" {
		e.broken("loop devices are left: %s", left)
	}
}
