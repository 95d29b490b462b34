package world

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// This file holds block volumes: the parts of a mapping, what the plugin does of it, and the program's block mapper. What
// reboots and unmappings leave of directories is not simulated.

// part is one part of a mapping.
type part uint8

// The parts of a mapping. A plugin publishes the device to the pod only where it stages it.
const (
	partPublished part = 1 << iota
	partLocked
	partBound
	partLinked

	partUnpublished = partLocked | partBound | partLinked
)

// isWhole reports whether all parts of a mapping are there; what is not mapped but set up has none. The lock is held.
func (w *World) isWhole(at At) bool {
	v := w.volumes[at.Volume]
	if at.Pod == "" || !v.Block {
		return true
	}
	return w.parts[at] == v.parts()
}

// parts are those of a whole mapping.
func (v Volume) parts() part {
	if v.Stageable {
		return partUnpublished | partPublished
	}
	return partUnpublished
}

// put adds parts to a mapping. The lock is held.
func (t *truth) put(at At, parts part) {
	t.parts[at] |= parts
	t.mounted[at] = true
}

// take removes parts of a mapping. The lock is held.
func (t *truth) take(at At, parts part) {
	if t.parts[at] &^= parts; t.parts[at] == 0 {
		delete(t.parts, at)
		delete(t.mounted, at)
		delete(t.foreign, at)
	}
}

// NewBlockVolumeMapper implements volume.BlockVolumePlugin.
func (p *plugin) NewBlockVolumeMapper(spec *volume.Spec, pod *v1.Pod) (volume.BlockVolumeMapper, error) {
	m := p.blockVolume(spec.Name(), pod.UID)
	if p.of(spec).Stageable {
		return customMapper{m}, nil
	}
	return m, nil
}

// NewBlockVolumeUnmapper implements volume.BlockVolumePlugin.
func (p *plugin) NewBlockVolumeUnmapper(name string, podUID types.UID) (volume.BlockVolumeUnmapper, error) {
	m := p.blockVolume(name, podUID)
	if p.process.world.volumes[name].Stageable {
		return customMapper{m}, nil
	}
	return m, nil
}

// ConstructBlockVolumeSpec implements volume.BlockVolumePlugin.
func (p *plugin) ConstructBlockVolumeSpec(_ types.UID, name, _ string) (*volume.Spec, error) {
	return p.process.world.specs[name], nil
}

func (p *plugin) blockVolume(name string, podUID types.UID) blockVolume {
	return blockVolume{plugin: p, at: At{Node: p.process.node, Volume: name, Pod: string(podUID)}}
}

// blockVolume is a volume that is mapped for a pod.
type blockVolume struct {
	volume.MetricsNil
	plugin *plugin
	at     At
}

var (
	_ volume.BlockVolumePlugin         = (*plugin)(nil)
	_ volume.CustomBlockVolumeMapper   = customMapper{}
	_ volume.CustomBlockVolumeUnmapper = customMapper{}
	_ operationexecutor.BlockMapper    = (*Process)(nil)
	_ operationexecutor.DeviceUse      = (*Process)(nil)
)

// GetGlobalMapPath implements volume.BlockVolume.
func (b blockVolume) GetGlobalMapPath(spec *volume.Spec) (string, error) {
	return b.plugin.host.GetVolumeDevicePluginDir(PluginName) + "/" + spec.Name(), nil
}

// GetPodDeviceMapPath implements volume.BlockVolume.
func (b blockVolume) GetPodDeviceMapPath() (dir, name string) {
	return b.plugin.host.GetPodVolumeDeviceDir(types.UID(b.at.Pod), PluginName), b.at.Volume
}

// customMapper is one whose device is staged, and published to each pod.
type customMapper struct{ blockVolume }

func (b customMapper) call(ctx context.Context, name string, at At, e effect) error {
	return b.plugin.process.call(ctx, name, at, e)
}

func (b customMapper) whole() At { return At{Node: b.at.Node, Volume: b.at.Volume} }

// GetStagingPath implements volume.CustomBlockVolumeMapper.
func (b customMapper) GetStagingPath() string { return "" }

// SetUpDevice implements volume.CustomBlockVolumeMapper.
func (b customMapper) SetUpDevice(ctx context.Context, _ volume.SetUpDeviceArgs) (string, error) {
	w, at := b.plugin.process.world, b.whole()
	return "", b.call(ctx, "SetUpDevice", at, effect{
		apply: func() { w.staged[at] = true; delete(w.foreign, at) },
		clean: func() { delete(w.staged, at) },
	})
}

// TearDownDevice implements volume.CustomBlockVolumeUnmapper.
func (b customMapper) TearDownDevice(ctx context.Context, _ volume.TearDownDeviceArgs) error {
	w, at := b.plugin.process.world, b.whole()
	return b.call(ctx, "TearDownDevice", at, effect{apply: func() { delete(w.staged, at); delete(w.foreign, at) }})
}

// MapPodDevice implements volume.CustomBlockVolumeMapper. One that fails for good has withdrawn the device from the pod,
// unless the pod uses it.
func (b customMapper) MapPodDevice(ctx context.Context, _ volume.MapPodDeviceArgs) (string, error) {
	w, at := b.plugin.process.world, b.at
	return "/dev/" + at.Volume, b.call(ctx, "MapPodDevice", at, effect{
		apply: func() { w.put(at, partPublished) },
		clean: func() {
			if !w.used[at] {
				w.take(at, partPublished)
			}
		},
	})
}

// UnmapPodDevice implements volume.CustomBlockVolumeUnmapper.
func (b customMapper) UnmapPodDevice(ctx context.Context, _ volume.UnmapPodDeviceArgs) error {
	w, at := b.plugin.process.world, b.at
	return b.call(ctx, "UnmapPodDevice", at, effect{apply: func() { w.take(at, partPublished) }})
}

// mappingOf returns what a mapping is for.
func (p *Process) mappingOf(globalMapPath string, podUID types.UID) At {
	return At{Node: p.node, Volume: globalMapPath[strings.LastIndexByte(globalMapPath, '/')+1:], Pod: string(podUID)}
}

// MapDevice implements operationexecutor.BlockMapper.
func (p *Process) MapDevice(ctx context.Context, m operationexecutor.DeviceMapping) error {
	w, at := p.world, p.mappingOf(m.GlobalMapPath, m.PodUID)
	return p.call(ctx, "MapDevice", at, effect{
		apply: func() { w.put(at, partUnpublished); delete(w.foreign, at) },
		half:  func() { w.put(at, partLocked|partBound) },
	})
}

// UnmapDevice implements operationexecutor.BlockMapper.
func (p *Process) UnmapDevice(ctx context.Context, m operationexecutor.DeviceMapping) error {
	w, at := p.world, p.mappingOf(m.GlobalMapPath, m.PodUID)
	return p.call(ctx, "UnmapDevice", at, effect{
		apply: func() { w.take(at, partUnpublished); delete(w.foreign, at) },
		half:  func() { w.take(at, partLinked) },
	})
}

// ResolveDevice implements operationexecutor.BlockMapper.
func (p *Process) ResolveDevice(_ context.Context, devicePath string) (string, error) {
	return devicePath, nil
}

// MappedPods implements operationexecutor.BlockMapper.
func (p *Process) MappedPods(_ context.Context, globalMapPath string) ([]string, error) {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	whole, pods := p.mappingOf(globalMapPath, ""), []string(nil)
	for at, parts := range p.world.parts {
		if at.Node == whole.Node && at.Volume == whole.Volume && parts&partBound != 0 {
			pods = append(pods, at.Pod)
		}
	}
	slices.Sort(pods)
	return pods, nil
}

// RemoveMapPath implements operationexecutor.BlockMapper.
func (p *Process) RemoveMapPath(ctx context.Context, globalMapPath string) error {
	return p.call(ctx, "RemoveMapPath", p.mappingOf(globalMapPath, ""), effect{apply: func() {}})
}

var errNoDevice = errors.New("simulated: it is no device")

// DeviceOpened implements operationexecutor.DeviceUse: who stages, sets up or maps a device holds it.
func (p *Process) DeviceOpened(_ context.Context, devicePath string) (bool, error) {
	name, ok := strings.CutPrefix(devicePath, "/dev/")
	if !ok {
		return false, fmt.Errorf("%q: %w", devicePath, errNoDevice)
	}
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	whole := At{Node: p.node, Volume: name}
	return p.world.staged[whole] || p.world.hasPods(whole), nil
}
