package volumetest

import (
	"context"
	"io/fs"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

func blockCases() []Case {
	return []Case{
		{
			Rule: "B1", Group: "block", Name: "map paths",
			Sentence: "GetGlobalMapPath and GetPodDeviceMapPath MUST be absolute, below the node's root and always the same: the first is one path for all pods, the second differs for each pod.",
			Needs:    volume.CapBlock, run: mapPaths,
		},
		{
			Rule: "B2", Group: "block", Name: "mapped again",
			Sentence: "A second SetUpDevice or MapPodDevice, if the plugin has them, MUST succeed, also by a new value of the plugin, and MUST lead to the same device.",
			Needs:    volume.CapBlock, run: mappedAgain,
		},
		{
			Rule: "B3", Group: "block", Name: "unmapped again",
			Sentence: "UnmapPodDevice and TearDownDevice, if the plugin has them, MUST succeed if nothing is there, also by a new value of the plugin.",
			Needs:    volume.CapBlock, run: unmappedAgain,
		},
		{
			Rule: "B4", Group: "block", Name: "content of the device",
			Sentence: "What is written to the device MUST be read back after it was unmapped, detached, attached and mapped again.",
			Needs:    volume.CapBlock, run: deviceKeepsContent,
		},
		{
			Rule: "B5", Group: "block", Name: "spec from a link",
			Sentence: "ConstructBlockVolumeSpec MUST return, for the inner name and the link of a pod, a spec of this plugin with that inner name and the volume mode Block.",
			Needs:    volume.CapBlock, run: blockSpecFromLink,
		},
		{
			Rule: "B6", Group: "block", Name: "cancelled",
			Sentence: "SetUpDevice, MapPodDevice, UnmapPodDevice and TearDownDevice whose context ends, before or during the call, MUST do no harm: the next call MUST finish the work.",
			Needs:    volume.CapBlock, run: cancelledMapping,
		},
		{
			Rule: "B7", Group: "block", Name: "two pods of one device",
			Sentence: "UnmapPodDevice for one pod MUST leave the device to the other pods.",
			Needs:    volume.CapBlock, run: unmapOneOfTwo,
		},
		{
			Rule: "B8", Group: "block", Name: "two devices of one pod",
			Sentence: "Volumes MUST have different global map paths, devices and, within one pod, links, also if one name begins with the other. Unmapping one MUST leave the others mapped, with their content.",
			Needs:    volume.CapBlock, run: twoDevicesOfOnePod,
		},
	}
}

// blockSpec returns a spec of storage of its own that is used as a block device.
func (e *env) blockSpec() *volume.Spec {
	e.t.Helper()
	block := v1.PersistentVolumeBlock
	if e.config.NewBlockSpec != nil {
		spec := e.config.NewBlockSpec(e.t)
		if spec == nil {
			e.t.Skipf("Config.NewBlockSpec says that there is no device")
		}
		return spec
	}
	if e.config.NewSpec == nil {
		options := e.volumeOptions()
		options.PVC = options.PVC.DeepCopy()
		options.PVC.Spec.VolumeMode = &block
		return volume.NewSpecFromPersistentVolume(e.provision(options), false)
	}
	spec := copySpec(e.newSpec())
	if spec.PersistentVolume == nil {
		e.t.Skipf("volume %q is no PersistentVolume, so that it cannot be a block device", spec.Name())
	}
	spec.PersistentVolume.Spec.VolumeMode = &block
	return spec
}

// mapped is a block device on its way to one pod. The binds and the link are the executor's and are not made here.
type mapped struct {
	s         *staged
	pod       *v1.Pod
	globalMap string
	device    string
	wasThere  bool // the device, when it was mapped
}

// mapFor makes the device ready for a pod.
func (s *staged) mapFor(pod *v1.Pod) *mapped {
	s.e.t.Helper()
	globalMap, err := s.mapper(pod).GetGlobalMapPath(s.spec)
	s.e.must("GetGlobalMapPath", err)
	m := &mapped{s: s, pod: pod, globalMap: globalMap, device: s.devicePath}
	s.e.later(m.tryUnmap)
	s.e.must("SetUpDevice and MapPodDevice", m.tryMap(s.e.ctx()))
	m.wasThere = m.exists()
	return m
}

// tryMap makes the calls of a plugin that has them.
func (m *mapped) tryMap(ctx context.Context) error {
	m.s.e.t.Helper()
	custom, ok := m.s.mapper(m.pod).(volume.CustomBlockVolumeMapper)
	if !ok {
		return nil
	}
	if _, err := custom.SetUpDevice(ctx, volume.SetUpDeviceArgs{DevicePath: m.s.devicePath}); err != nil {
		return err
	}
	path, err := custom.MapPodDevice(ctx, volume.MapPodDeviceArgs{
		DevicePath: m.s.devicePath, GlobalMapPath: m.globalMap, PodUID: m.pod.UID,
	})
	if err == nil && path != "" {
		m.device = path
	}
	return err
}

// unmap takes the device from the pod, and from the node.
func (m *mapped) unmap() {
	m.s.e.t.Helper()
	m.s.e.must("UnmapPodDevice and TearDownDevice", m.takeAway(m.s.e.ctx()))
}

// tryUnmap is unmap for the clean-up.
func (m *mapped) tryUnmap() { _ = m.takeAway(m.s.e.afterwards()) }

func (m *mapped) takeAway(ctx context.Context) error {
	if err := m.takeFromPod(ctx); err != nil {
		return err
	}
	unmapper, err := m.s.blockPlugin().NewBlockVolumeUnmapper(m.s.spec.Name(), "")
	if err != nil {
		return err
	}
	if custom, ok := unmapper.(volume.CustomBlockVolumeUnmapper); ok {
		return custom.TearDownDevice(ctx, volume.TearDownDeviceArgs{MapPath: m.globalMap, DevicePath: m.device})
	}
	return nil
}

// takeFromPod takes the device from the pod and leaves it to others.
func (m *mapped) takeFromPod(ctx context.Context) error {
	unmapper, err := m.s.blockPlugin().NewBlockVolumeUnmapper(m.s.spec.Name(), m.pod.UID)
	if err != nil {
		return err
	}
	if custom, ok := unmapper.(volume.CustomBlockVolumeUnmapper); ok {
		return custom.UnmapPodDevice(ctx, volume.UnmapPodDeviceArgs{GlobalMapPath: m.globalMap, PodUID: m.pod.UID})
	}
	return nil
}

func (s *staged) blockPlugin() volume.BlockVolumePlugin {
	s.e.t.Helper()
	plugin, err := s.e.registry.FindMapperPluginByName(s.e.plugin.GetPluginName())
	s.e.must("finding the mapper", err)
	return plugin
}

func (s *staged) mapper(pod *v1.Pod) volume.BlockVolumeMapper {
	s.e.t.Helper()
	mapper, err := s.blockPlugin().NewBlockVolumeMapper(s.spec, pod)
	s.e.must("NewBlockVolumeMapper", err)
	return mapper
}

// mapPathsOf returns the paths of one pod, which must be where they may be.
func (s *staged) mapPathsOf(pod *v1.Pod) (globalMap, link string) {
	s.e.t.Helper()
	mapper := s.mapper(pod)
	globalMap, err := mapper.GetGlobalMapPath(s.spec)
	s.e.must("GetGlobalMapPath", err)
	dir, name := mapper.GetPodDeviceMapPath()
	if volume.CheckPathElement(name) != nil {
		s.e.broken("the link of a pod is called %q, which is no element of a path", name)
	}
	link = filepath.Join(dir, name)
	for _, path := range []string{globalMap, dir, link} {
		if filepath.Clean(path) != path || !s.e.beneathRoot(path) {
			s.e.broken("%q is not a clean path beneath %s", path, s.e.root)
		}
	}
	return globalMap, link
}

func mapPaths(e *env) {
	s := e.attached(e.blockSpec())
	one, two := newPod(), newPod()
	globalMap, link := s.mapPathsOf(one)
	e.crash()
	againMap, againLink := s.mapPathsOf(one)
	if globalMap != againMap || link != againLink {
		e.broken("the paths were %s and %s and are %s and %s", globalMap, link, againMap, againLink)
	}
	otherMap, otherLink := s.mapPathsOf(two)
	if otherMap != globalMap {
		e.broken("GetGlobalMapPath is %s for one pod and %s for another", globalMap, otherMap)
	}
	if otherLink == link {
		e.broken("two pods have one link, %s", link)
	}
	unmapper, err := s.blockPlugin().NewBlockVolumeUnmapper(s.spec.Name(), one.UID)
	e.must("NewBlockVolumeUnmapper", err)
	if dir, name := unmapper.GetPodDeviceMapPath(); filepath.Join(dir, name) != link {
		e.broken("the unmapper's link is %s, the mapper's %s", filepath.Join(dir, name), link)
	}
	s.release()
}

func mappedAgain(e *env) {
	s := e.attached(e.blockSpec())
	pod := newPod()
	first := s.mapFor(pod)
	if !filepath.IsAbs(first.device) {
		e.broken("the device is at %q, which is not an absolute path", first.device)
	}
	if again := s.mapFor(pod); again.device != first.device {
		e.broken("the device is at %s and then at %s", first.device, again.device)
	}
	e.crash()
	if again := s.mapFor(pod); again.device != first.device {
		e.broken("the device is at %s and, by a new value of the plugin, at %s", first.device, again.device)
	}
	first.unmap()
	s.release()
}

func unmappedAgain(e *env) {
	s := e.attached(e.blockSpec())
	m := s.mapFor(newPod())
	m.unmap()
	m.unmap()
	e.crash()
	m.unmap()
	(&mapped{s: s, pod: newPod(), globalMap: m.globalMap}).unmap()
	s.release()
}

func deviceKeepsContent(e *env) {
	s := e.attached(e.blockSpec())
	m := s.mapFor(newPod())
	if _, err := e.world.Lstat(m.device); err != nil {
		e.t.Skipf("the world has no device that could be written to: %v", err)
	}
	content := "written to the device of " + s.spec.Name()
	if err := e.world.WriteFile(m.device, []byte(content), 0); err != nil {
		e.broken("writing to %s: %v", m.device, err)
	}
	m.unmap()
	s.release()
	e.crash()
	s = e.attached(s.spec)
	m = s.mapFor(newPod())
	got, err := e.world.ReadFile(m.device)
	if err != nil {
		e.broken("reading from %s: %v", m.device, err)
	}
	if len(got) < len(content) || string(got[:len(content)]) != content {
		e.broken("%s does not begin with what was written to the volume", m.device)
	}
	m.unmap()
	s.release()
}

func unmapOneOfTwo(e *env) {
	s := e.attached(e.blockSpec())
	one, two := s.mapFor(newPod()), s.mapFor(newPod())
	two.put(contentMark + "content")
	e.must("UnmapPodDevice", one.takeFromPod(e.ctx()))
	two.holds(contentMark + "content")
	two.unmap()
	s.release()
}

func twoDevicesOfOnePod(e *env) {
	one, two := e.blockSpecsAlike()
	s, other := e.attached(one), e.attached(two)
	pod := newPod()
	first, link := s.mapPathsOf(pod)
	second, otherLink := other.mapPathsOf(pod)
	if first == second || link == otherLink {
		e.broken("volumes %q and %q have the global map paths %s and %s, and the links %s and %s", one.Name(), two.Name(), first, second, link, otherLink)
	}
	m, n := s.mapFor(pod), other.mapFor(pod)
	if m.device == n.device {
		e.broken("volumes %q and %q have one device, %s", one.Name(), two.Name(), m.device)
	}
	m.put(contentMark + "of the first volume")
	n.isBlank()
	n.put(contentMark + "of the second volume")
	m.holds(contentMark + "of the first volume")
	m.unmap()
	s.release()
	n.holds(contentMark + "of the second volume")
	n.unmap()
	other.release()
}

// blockSpecsAlike is newSpecsAlike for block devices.
func (e *env) blockSpecsAlike() (one, two *volume.Spec) {
	e.t.Helper()
	if e.config.NewSpec != nil || e.config.NewBlockSpec != nil {
		one, two = e.blockSpec(), copySpec(e.blockSpec())
		rename(two, one.Name()+"-2")
		return one, two
	}
	mode := v1.PersistentVolumeBlock
	options := e.volumeOptions()
	options.PVC = options.PVC.DeepCopy()
	options.PVC.Spec.VolumeMode = &mode
	return e.specOf(options), e.specOf(alike(options, options.PVName))
}

// linker is a World in which the executor's link to a block device can be made.
type linker interface {
	MkdirAll(name string, perm fs.FileMode) error
	Symlink(oldname, newname string) error
	Remove(name string) error
}

func blockSpecFromLink(e *env) {
	world, ok := e.world.(linker)
	if !ok {
		e.t.Skipf("Config.World has no methods MkdirAll, Symlink and Remove: a link cannot be made")
	}
	s := e.attached(e.blockSpec())
	pod := newPod()
	m := s.mapFor(pod)
	_, link := s.mapPathsOf(pod)
	if err := world.MkdirAll(filepath.Dir(link), 0o750); err != nil {
		e.t.Fatalf("making the directory of the link: %v", err)
	}
	if err := world.Symlink(filepath.Join(m.globalMap, string(pod.UID)), link); err != nil {
		e.t.Fatalf("making the link: %v", err)
	}
	e.later(func() { _ = world.Remove(link) })
	e.crash()
	found, err := s.blockPlugin().ConstructBlockVolumeSpec(pod.UID, s.spec.Name(), link)
	e.must("ConstructBlockVolumeSpec", err)
	if found == nil || !e.plugin.CanSupport(found) {
		e.broken("ConstructBlockVolumeSpec returned a spec that the plugin does not support")
	}
	if found.Name() != s.spec.Name() {
		e.broken("ConstructBlockVolumeSpec called the volume %q instead of %q", found.Name(), s.spec.Name())
	}
	if mode, err := volume.GetVolumeMode(found); err != nil || mode != v1.PersistentVolumeBlock {
		e.broken("the spec that ConstructBlockVolumeSpec returned is used as %q: %v", mode, err)
	}
	if err := world.Remove(link); err != nil {
		e.t.Fatalf("removing the link: %v", err)
	}
	m.unmap()
	s.release()
}
